# cu130-debian: SGLang 0.5.12 on CUDA 13.0 from PyPI and Debian alone, with nvcc from wheels
#
# Written by `imagebuilder render`; the lock decides every file in it. It builds without imagebuilder:
#
#   docker buildx build --platform linux/amd64 --build-arg SOURCE_DATE_EPOCH=1794700800 --tag cu130-debian .
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

# ---- torch/nvidia-cublas: nvidia-cublas 13.1.0.3
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/02-torch-nvidia-cublas,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cudnn-cu13: nvidia-cudnn-cu13 9.19.0.56
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/03-torch-nvidia-cudnn-cu13,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-cusparselt-cu13: nvidia-cusparselt-cu13 0.8.0
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/04-torch-nvidia-cusparselt-cu13,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/nvidia-nccl-cu13: nvidia-nccl-cu13 2.28.9
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/05-torch-nvidia-nccl-cu13,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/torch: torch 2.11.0
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/06-torch,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch/triton: triton 3.6.0
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/07-torch-triton,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- torch: 16 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/08-torch,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- toolkit/nvidia-cuda-nvrtc: nvidia-cuda-nvrtc 13.0.88
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/09-toolkit-nvidia-cuda-nvrtc,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- toolkit/nvidia-cufft: nvidia-cufft 12.0.0.61
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/10-toolkit-nvidia-cufft,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- toolkit/nvidia-cusolver: nvidia-cusolver 12.0.4.66
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/11-toolkit-nvidia-cusolver,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- toolkit/nvidia-cusparse: nvidia-cusparse 12.6.3.3
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/12-toolkit-nvidia-cusparse,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- toolkit: 11 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/13-toolkit,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- kernels/sglang-kernel: sglang-kernel 0.4.2.post2
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/14-kernels-sglang-kernel,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer/flashinfer-cubin: flashinfer-cubin 0.6.11.post1
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/15-flashinfer-flashinfer-cubin,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer/nvidia-cutlass-dsl-libs-base: nvidia-cutlass-dsl-libs-base 4.5.0
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/16-flashinfer-nvidia-cutlass-dsl-libs-base,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- flashinfer: 19 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/17-flashinfer,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- sglang/tokenspeed-triton: tokenspeed-triton 3.9.10.post20261028
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/18-sglang-tokenspeed-triton,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- sglang: 133 wheels
RUN --mount=type=bind,source=tools,target=/mnt/tools \
    --mount=type=bind,source=layers/19-sglang,target=/mnt/layer \
    --mount=type=cache,id=imagebuilder-wheels,target=/mnt/wheels,sharing=locked \
    --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=netrc \
    --mount=type=secret,id=ca-bundle \
    sh /mnt/tools/fetch-wheels /mnt/layer/requirements.txt && \
    sh /mnt/tools/install-wheels /mnt/layer/requirements.txt /mnt/wheels

# ---- extra files
#      /usr/local/lib/cuda-link/libcublas.so (0644)
#      /usr/local/lib/cuda-link/libcublasLt.so (0644)
#      /usr/local/lib/cuda-link/libcuda.so (0644)
#      /usr/local/lib/cuda-link/libcudart.so (0644)
#      /usr/local/lib/cuda-link/libnvrtc.so (0644)
ADD files.tar /

# ---- how it is started; none of this makes a layer
ENV PATH="/opt/venv/bin:${PATH}" VIRTUAL_ENV="/opt/venv" \
    CC="gcc" \
    CUDA_HOME="/opt/venv/lib/python3.11/site-packages/nvidia/cu13" \
    CXX="g++" \
    FLASHINFER_CUDA_ARCH_LIST="12.0f" \
    FLASHINFER_WORKSPACE_BASE="/var/cache/imagebuilder" \
    LD_LIBRARY_PATH="/opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib" \
    LIBRARY_PATH="/usr/local/lib/cuda-link:/opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib" \
    NCCL_ALGO="Ring" \
    NCCL_P2P_LEVEL="SYS" \
    NCCL_PROTO="LL" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    PYTHONPYCACHEPREFIX="/var/cache/imagebuilder/pyc" \
    PYTHONUNBUFFERED="1" \
    SGLANG_DG_CACHE_DIR="/var/cache/imagebuilder/deep_gemm" \
    SGLANG_ENABLE_SPEC_V2="1" \
    TORCHINDUCTOR_CACHE_DIR="/var/cache/imagebuilder/inductor" \
    TORCH_CUDA_ARCH_LIST="12.0" \
    TRITON_CACHE_DIR="/var/cache/imagebuilder/triton" \
    TRITON_PTXAS_PATH="/opt/venv/lib/python3.11/site-packages/nvidia/cu13/bin/ptxas" \
    TVM_FFI_CACHE_DIR="/var/cache/imagebuilder/tvm-ffi" \
    TVM_FFI_CUDA_ARCH_LIST="12.0a"
LABEL "dev.imagebuilder.plan"="…" \
    "dev.imagebuilder.stack"="cu130-debian" \
    "org.opencontainers.image.created"="2026-11-15T00:00:00Z" \
    "org.opencontainers.image.description"="SGLang 0.5.12 on CUDA 13.0 from PyPI and Debian alone, with nvcc from wheels" \
    "org.opencontainers.image.title"="cu130-debian"
EXPOSE 30000/tcp
WORKDIR "/"
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "-m", "sglang.launch_server", "--help"]
