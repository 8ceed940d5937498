/* The wall clock of a program that loads this first (LD_PRELOAD): the machine's, and as many seconds
 * more as are in the file that CAMPAIGN_CLOCK names.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long *jump;

__attribute__((constructor)) static void map_file(void) {
    const char *name = getenv("CAMPAIGN_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *jump, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        jump = mapped;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, which, now);
    if (status == 0 && which == CLOCK_REALTIME && jump)
        now->tv_sec += *jump;
    return status;
}
