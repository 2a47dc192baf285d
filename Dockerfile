# `aisfs`, also as the driver of Kubernetes: docker build -t aisfs:0.1.0 .
FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libfuse3-dev pkg-config python3-dev python3-venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY systemd systemd
COPY aisfs aisfs
RUN python3 -m venv /opt/aisfs \
    && /opt/aisfs/bin/pip install --no-cache-dir '.[csi,cloud,hf,fsspec,zstd,lz4]'

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates fuse3 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 aisfs && useradd --uid 65532 --gid 65532 --create-home aisfs
COPY --from=build /opt/aisfs /opt/aisfs
ENV PATH=/opt/aisfs/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /home/aisfs
# What mounts into other containers needs root: deploy/ says so there.
USER 65532:65532
ENTRYPOINT ["aisfs"]
