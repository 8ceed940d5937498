# The agent in a container. The driver comes from the node, in one of three ways (docs/install.md):
# mounted by NVIDIA's container runtime, from the GPU Operator's driver container, or from the host.
# Of the latter two only one library is used.
#
# Debian's essential packages are enough besides: bash for probes, chroot for the driver's programs,
# nsenter for the host's systemd.

# By the digest of its index of all platforms, as docker-library/repo-info records it; the version
# before it is for people.
ARG PYTHON=python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/run.txt requirements/build.txt requirements/
RUN python -m venv /opt/nodeagent \
 && /opt/nodeagent/bin/pip install --no-cache-dir --no-compile --require-hashes \
      -r requirements/run.txt \
 && python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY nodeagent nodeagent
# No index: what builds the package was installed from its lock above.
RUN python -m pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/nodeagent/bin/pip install --no-index --no-deps --no-compile /wheels/*.whl \
 && /opt/nodeagent/bin/pip uninstall --yes setuptools pip \
 && /opt/nodeagent/bin/python -m compileall -q /opt/nodeagent/lib \
 && /opt/nodeagent/bin/python -c 'import nodeagent.cluster.client.access'

FROM ${PYTHON}
ARG PYTHON
# The commit and the time of the build, where who builds it says them.
ARG REVISION=""
ARG CREATED=""
LABEL org.opencontainers.image.title="nodeagent" \
      org.opencontainers.image.description="Partitions the NVIDIA GPUs of a node with MIG and MPS from a plan, and reports health and metrics" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.authors="The nodeagent maintainers" \
      org.opencontainers.image.base.name="${PYTHON}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=build /opt/nodeagent /opt/nodeagent
ENV PATH=/opt/nodeagent/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_MIG_CONFIG_DEVICES=all \
    NVIDIA_MIG_MONITOR_DEVICES=all
# Root, because the driver lets only root change MIG. With simulated GPUs any user will do.
ENTRYPOINT ["nodeagent"]
CMD ["run"]
