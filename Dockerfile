# The agent in a container. The driver's library and programs come from the node: NVIDIA's container
# runtime puts them there (docs/operations.md), those of MPS with `compute`. What Debian always has
# is enough besides: nsenter, for the way to the host's systemd.

ARG PYTHON=python:3.11.13-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/run.txt requirements/build.txt requirements/
RUN python -m venv /opt/nodeagent \
 && /opt/nodeagent/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt \
 && python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY nodeagent nodeagent
# No index: what builds the package was installed from its lock above.
RUN python -m pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/nodeagent/bin/pip install --no-index --no-deps /wheels/*.whl \
 && /opt/nodeagent/bin/pip uninstall --yes pip setuptools

FROM ${PYTHON}
COPY --from=build /opt/nodeagent /opt/nodeagent
ENV PATH=/opt/nodeagent/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_MIG_CONFIG_DEVICES=all \
    NVIDIA_MIG_MONITOR_DEVICES=all
# Root, because the driver lets nobody else change MIG.
ENTRYPOINT ["nodeagent"]
CMD ["run"]
