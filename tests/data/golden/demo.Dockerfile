# demo: A simulator of SGLang's HTTP API on Debian bookworm, to see every step in a minute
#
# Written by `imagebuilder render`; the lock decides every file in it. It builds without imagebuilder:
#
#   docker buildx build --platform linux/amd64 --build-arg SOURCE_DATE_EPOCH=1794700800 --tag demo .
#
# Behind a company's proxy or mirror, give what pip and apt need as build secrets; none of it stays in the image:
#   --secret id=pip.conf,src=$HOME/.config/pip/pip.conf --secret id=ca-bundle,src=/etc/ssl/certs/ca-certificates.crt
#
# Each group below makes one layer, from what changes least to what changes most.

# ---- debian: 113 Debian packages, unpacked in order and packed as one tar; no registry is needed
FROM scratch
ADD base.tar.gz /

# ---- the Python environment: what `python -m venv --without-pip` makes, without its activate scripts (PEP 405)
RUN mkdir -p /opt/venv/bin /opt/venv/include /opt/venv/lib/python3.11/site-packages && \
    ln -s lib /opt/venv/lib64 && \
    ln -s /usr/bin/python3.11 /opt/venv/bin/python && \
    ln -s python /opt/venv/bin/python3 && \
    ln -s python /opt/venv/bin/python3.11 && \
    printf '%s\n' 'home = /usr/bin' 'include-system-site-packages = false' 'version = 3.11' \
        'executable = /usr/bin/python3.11' > /opt/venv/pyvenv.cfg

# ---- python/pip: pip 26.3
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/01-python-pip,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- service: 14 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/02-service,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- extra files
#      /srv/demo/sglang_simulator/__init__.py (0644)
#      /srv/demo/sglang_simulator/__main__.py (0644)
#      /srv/demo/sglang_simulator/answers.json (0644)
#      /srv/demo/sglang_simulator/app.py (0644)
#      /srv/demo/sglang_simulator/engine.py (0644)
#      /srv/demo/sglang_simulator/options.py (0644)
#      /srv/demo/sglang_simulator/service.py (0644)
#      /srv/demo/sglang_simulator/text.py (0644)
ADD files.tar /

# ---- how it is started; none of this makes a layer
ENV PATH="/opt/venv/bin:${PATH}" VIRTUAL_ENV="/opt/venv" \
    PYTHONPYCACHEPREFIX="/var/cache/imagebuilder/pyc" \
    PYTHONUNBUFFERED="1"
LABEL "dev.imagebuilder.plan"="…" \
    "dev.imagebuilder.stack"="demo" \
    "org.opencontainers.image.created"="2026-11-15T00:00:00Z" \
    "org.opencontainers.image.description"="A simulator of SGLang's HTTP API on Debian bookworm, to see every step in a minute" \
    "org.opencontainers.image.title"="demo"
EXPOSE 8000/tcp
WORKDIR "/srv/demo"
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "-m", "sglang_simulator", "--model-path", "demo", "--host", "0.0.0.0", "--port", "8000"]
