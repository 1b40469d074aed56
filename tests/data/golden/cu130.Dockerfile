# cu130: SGLang 0.5.9 with EAGLE-3 on CUDA 13.0, for SM120 Blackwell
#
# Written by `imagebuilder render`; the lock decides every file in it. It builds without imagebuilder:
#
#   docker buildx build --platform linux/amd64 --build-arg SOURCE_DATE_EPOCH=1794700800 --tag cu130 .
#
# Behind a company's proxy or mirror, give what pip and apt need as build secrets; none of it stays in the image:
#   --secret id=pip.conf,src=$HOME/.config/pip/pip.conf --secret id=ca-bundle,src=/etc/ssl/certs/ca-certificates.crt
#
# Each group below makes one layer, from what changes least to what changes most.

# ---- base: docker.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04@sha256:8b2705ea7a8653ad3451b46ab835eced92d77b44e671b9cf3ad4f95fbb2efe5e
ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04@sha256:8b2705ea7a8653ad3451b46ab835eced92d77b44e671b9cf3ad4f95fbb2efe5e
FROM ${BASE_IMAGE}

# ---- system packages, as the archive was at 20261115T000000Z
ARG APT_SNAPSHOT=20261115T000000Z
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=cache,id=imagebuilder-apt-archives,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=imagebuilder-apt-lists,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=apt.conf --mount=type=secret,id=apt-sources --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/install-packages "$APT_SNAPSHOT" \
        python3.12 \
        python3.12-dev \
        libnuma1 \
        g++ \
        ninja-build \
        ca-certificates \
        tini

# ---- the Python environment: what `python -m venv --without-pip` makes, without its activate scripts (PEP 405)
RUN mkdir -p /opt/venv/bin /opt/venv/include /opt/venv/lib/python3.12/site-packages && \
    ln -s lib /opt/venv/lib64 && \
    ln -s /usr/bin/python3.12 /opt/venv/bin/python && \
    ln -s python /opt/venv/bin/python3 && \
    ln -s python /opt/venv/bin/python3.12 && \
    printf '%s\n' 'home = /usr/bin' 'include-system-site-packages = false' 'version = 3.12' \
        'executable = /usr/bin/python3.12' > /opt/venv/pyvenv.cfg

# ---- python/pip: pip 26.3
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/01-python-pip,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cudnn-cu13: nvidia-cudnn-cu13 9.16.0.29
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/02-torch-nvidia-cudnn-cu13,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/torch: torch 2.9.1+cu130
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/03-torch,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=index-pytorch-cu130 \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt pytorch-cu130 https://download.pytorch.org/whl/cu130 && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch: 6 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/04-torch,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=index-pytorch-cu130 \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/fetch-default.txt && \
    sh /mnt/tools/fetch-wheels /mnt/layer/fetch-pytorch-cu130.txt pytorch-cu130 https://download.pytorch.org/whl/cu130 && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- kernels/sgl-kernel: sgl-kernel 0.3.21+cu130
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/05-kernels-sgl-kernel,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=index-sglang-cu130 \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt sglang-cu130 https://docs.sglang.ai/whl/cu130 && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer/flashinfer-cubin: flashinfer-cubin 0.6.4
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/06-flashinfer-flashinfer-cubin,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer: 2 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/07-flashinfer,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer-jit-cache/flashinfer-jit-cache: flashinfer-jit-cache 0.6.4+cu130
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/08-flashinfer-jit-cache,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=index-flashinfer-cu130 \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt flashinfer-cu130 https://flashinfer.ai/whl/cu130 && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- sglang: 3 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/09-sglang,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- sglang/sglang: sglang 0.5.9 with 2 patches
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/10-sglang,target=/mnt/layer \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/layer

# ---- how it is started; none of this makes a layer
ENV PATH="/opt/venv/bin:${PATH}" VIRTUAL_ENV="/opt/venv" \
    CUDA_HOME="/usr/local/cuda" \
    FLASHINFER_CUDA_ARCH_LIST="12.0f" \
    FLASHINFER_WORKSPACE_BASE="/var/cache/imagebuilder" \
    NCCL_ALGO="Ring" \
    NCCL_P2P_LEVEL="SYS" \
    NCCL_PROTO="LL" \
    PYTHONPYCACHEPREFIX="/var/cache/imagebuilder/pyc" \
    PYTHONUNBUFFERED="1" \
    SGLANG_DG_CACHE_DIR="/var/cache/imagebuilder/deep_gemm" \
    SGLANG_ENABLE_SPEC_V2="1" \
    TORCHINDUCTOR_CACHE_DIR="/var/cache/imagebuilder/inductor" \
    TORCH_CUDA_ARCH_LIST="12.0" \
    TRITON_CACHE_DIR="/var/cache/imagebuilder/triton" \
    TRITON_PTXAS_PATH="/usr/local/cuda/bin/ptxas" \
    TVM_FFI_CACHE_DIR="/var/cache/imagebuilder/tvm-ffi" \
    TVM_FFI_CUDA_ARCH_LIST="12.0a"
LABEL "dev.imagebuilder.plan"="…" \
    "dev.imagebuilder.stack"="cu130" \
    "org.opencontainers.image.base.digest"="sha256:8b2705ea7a8653ad3451b46ab835eced92d77b44e671b9cf3ad4f95fbb2efe5e" \
    "org.opencontainers.image.base.name"="docker.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04" \
    "org.opencontainers.image.created"="2026-11-15T00:00:00Z" \
    "org.opencontainers.image.description"="SGLang 0.5.9 with EAGLE-3 on CUDA 13.0, for SM120 Blackwell" \
    "org.opencontainers.image.title"="cu130"
EXPOSE 30000/tcp
WORKDIR "/"
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "-m", "sglang.launch_server", "--help"]
