# cu128-debian: SGLang 0.5.9 on CUDA 12.8 from PyPI and Debian alone; no nvcc, so no JIT kernels
#
# Written by `imagebuilder render`; the lock decides every file in it. It builds without imagebuilder:
#
#   docker buildx build --platform linux/amd64 --build-arg SOURCE_DATE_EPOCH=1794700800 --tag cu128-debian .
#
# Behind a company's proxy or mirror, give what pip and apt need as build secrets; none of it stays in the image:
#   --secret id=pip.conf,src=$HOME/.config/pip/pip.conf --secret id=ca-bundle,src=/etc/ssl/certs/ca-certificates.crt
#
# Each group below makes one layer, from what changes least to what changes most.

# ---- debian: 161 Debian packages, unpacked in order and packed as one tar; no registry is needed
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

# ---- torch/nvidia-cublas-cu12: nvidia-cublas-cu12 12.8.4.1
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/02-torch-nvidia-cublas-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cuda-nvrtc-cu12: nvidia-cuda-nvrtc-cu12 12.8.93
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/03-torch-nvidia-cuda-nvrtc-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cudnn-cu12: nvidia-cudnn-cu12 9.16.0.29
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/04-torch-nvidia-cudnn-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cufft-cu12: nvidia-cufft-cu12 11.3.3.83
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/05-torch-nvidia-cufft-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cusolver-cu12: nvidia-cusolver-cu12 11.7.3.90
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/06-torch-nvidia-cusolver-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cusparse-cu12: nvidia-cusparse-cu12 12.5.8.93
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/07-torch-nvidia-cusparse-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cusparselt-cu12: nvidia-cusparselt-cu12 0.7.1
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/08-torch-nvidia-cusparselt-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-nccl-cu12: nvidia-nccl-cu12 2.27.5
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/09-torch-nvidia-nccl-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-nvshmem-cu12: nvidia-nvshmem-cu12 3.3.20
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/10-torch-nvidia-nvshmem-cu12,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/torch: torch 2.9.1
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/11-torch,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/triton: triton 3.5.1
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/12-torch-triton,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch: 27 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/13-torch,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- kernels/sgl-kernel: sgl-kernel 0.3.21
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/14-kernels-sgl-kernel,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer/flashinfer-cubin: flashinfer-cubin 0.6.3
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/15-flashinfer-flashinfer-cubin,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer: 18 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/16-flashinfer,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- sglang: 110 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/17-sglang,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- sglang/sglang: sglang 0.5.9 with 2 patches
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/18-sglang,target=/mnt/layer \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/layer

# ---- how it is started; none of this makes a layer
ENV PATH="/opt/venv/bin:${PATH}" VIRTUAL_ENV="/opt/venv" \
    CC="gcc" \
    CXX="g++" \
    FLASHINFER_WORKSPACE_BASE="/var/cache/imagebuilder" \
    LD_LIBRARY_PATH="/opt/venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib:/opt/venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib" \
    NCCL_ALGO="Ring" \
    NCCL_P2P_LEVEL="SYS" \
    NCCL_PROTO="LL" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    PYTHONPYCACHEPREFIX="/var/cache/imagebuilder/pyc" \
    PYTHONUNBUFFERED="1" \
    SGLANG_DG_CACHE_DIR="/var/cache/imagebuilder/deep_gemm" \
    SGLANG_ENABLE_JIT_DEEPGEMM="0" \
    SGLANG_ENABLE_SPEC_V2="1" \
    TORCHINDUCTOR_CACHE_DIR="/var/cache/imagebuilder/inductor" \
    TRITON_CACHE_DIR="/var/cache/imagebuilder/triton" \
    TVM_FFI_CACHE_DIR="/var/cache/imagebuilder/tvm-ffi"
LABEL "dev.imagebuilder.plan"="…" \
    "dev.imagebuilder.stack"="cu128-debian" \
    "org.opencontainers.image.created"="2026-11-15T00:00:00Z" \
    "org.opencontainers.image.description"="SGLang 0.5.9 on CUDA 12.8 from PyPI and Debian alone; no nvcc, so no JIT kernels" \
    "org.opencontainers.image.title"="cu128-debian"
EXPOSE 30000/tcp
WORKDIR "/"
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "-m", "sglang.launch_server", "--help"]
