from __future__ import annotations

import pytest

from imagebuilder.stack.secrets import secret_argument, secret_variable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("hf_token", "x"),
        ("GITHUB_TOKEN", "abc"),
        ("DB_PASSWORD", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("OPENAI_API_KEY", "abc"),
        ("TLS_PRIVATE_KEY", "abc"),
        ("ANY", "hf_" + "a1" * 15),
        ("ANY", "ghp_" + "a1" * 18),
        ("ANY", "glpat-" + "a1" * 10),
        ("ANY", "AKIA" + "A1" * 8),
        ("ANY", "nvapi-" + "a1" * 15),
        ("ANY", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc"),
        ("PIP_INDEX_URL", "https://me:pass@index.example/simple"),
        ("ANY", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)
def test_secrets(name: str, value: str) -> None:
    problem = secret_variable(name, value)
    assert problem
    assert value not in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "512"),
        ("SGLANG_MAX_NEW_TOKEN", "512"),
        ("HF_TOKEN_PATH", "/run/secrets/hf"),
        ("REGISTRY_PASSWORD_FILE", "/run/secrets/p"),
        ("HF_TOKEN", ""),
        ("CUDA_HOME", "/usr/local/cuda"),
        ("INDEX", "https://index.example:8443/simple"),
        ("KEYBOARD", "us"),
        ("MONKEY", "x"),
        ("TASK", "ask-me-anything-you-like-and-more"),
    ],
)
def test_no_secrets(name: str, value: str) -> None:
    assert secret_variable(name, value) is None


@pytest.mark.parametrize(
    "text", ["--api-key", "--api-key=x", "--admin-api-key", "--hf-token=x", "--password"]
)
def test_arguments_that_are(text: str) -> None:
    assert secret_argument(text)


@pytest.mark.parametrize(
    "text", ["--tp", "--max-new-tokens=5", "--tokenizer-path=/m", "--skip-tokenizer-init", "/m"]
)
def test_arguments_that_are_not(text: str) -> None:
    assert secret_argument(text) is None
