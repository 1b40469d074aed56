"""The codes of what an acceptance finds before and in the container; `accept` finds them, `check` knows them.

They stand here because waivers are judged here, and `accept` stands further down.
"""

from __future__ import annotations

from imagebuilder.checks.model import Code, Severity


def _code(code: str, meaning: str, consequence: str, remedy: str, severity: Severity = "error") -> Code:
    return Code(
        code=f"acceptance.{code}", severity=severity, meaning=meaning, consequence=consequence, remedy=remedy
    )


MODEL_MISSING = _code(
    "model-missing",
    "the model, the draft model or a mounted folder is not on this machine",
    "the server fails at its start",
    "correct the path or the mount in [acceptance]",
)
DRAFT_MISMATCH = _code(
    "draft-mismatch",
    "the draft model was made for another target: hidden size or vocabulary differ",
    "the server fails at its start, or accepts nothing the draft proposes",
    "use the draft that was trained for this target",
)
ALGORITHM = _code(
    "algorithm",
    "the speculating server does not run EAGLE-3, or the baseline speculates too",
    "EAGLE with an EAGLE-3 draft gives an accept length of exactly 1.00 and no error (sglang#21272)",
    "--speculative-algorithm EAGLE3, in [acceptance.eagle3] only; it is added where it is left out",
)
LOSSY = _code(
    "lossy",
    "speculation is set to accept tokens that the target model would not have chosen",
    "it is fast because it answers something else",
    "remove the accept thresholds and SIMULATE_ACC_* from arguments and environment",
)
UNEQUAL = _code(
    "unequal",
    "the two servers are given different values of what should be the same",
    "the comparison is of that setting, not of speculation",
    "put it into [acceptance] arguments",
)
FEW_REQUESTS = _code(
    "few-requests",
    "a round has fewer requests than two for each stream",
    "most of the round is its beginning and its end",
    "raise requests, or lower concurrency, in [acceptance.load]",
    "warning",
)
FEW_ROUNDS = _code(
    "few-rounds",
    "two rounds are planned, of servers whose starts differ",
    "no speedup has an interval, so that a requirement of one is inconclusive whatever comes out",
    "at least 3 rounds; or start-variation = 0, where starts were measured to be the same",
    "warning",
)
GPUS = _code(
    "gpus",
    "the server is to use more GPUs than it is given",
    "it fails at its start",
    "--tp and [acceptance] gpus have to agree",
)
SECRET_MISSING = _code(
    "secret-missing",
    "a variable that is to be handed through is not set here",
    "the server cannot log in where it has to",
    "export it, or remove it from [acceptance] secrets",
)
DISTRIBUTION = _code(
    "distribution",
    "a locked package is not in the image, or in another version",
    "the image is not what its lock says",
    "build it again: imagebuilder build STACK",
)
IMPORT = _code(
    "import",
    "a locked package cannot be imported in the container",
    "whatever uses it fails when it is used",
    "see the error; a package that is not needed here can be waived",
)
TORCH = _code(
    "torch",
    "torch in the container is another CUDA build, or has another NCCL, than the lock says",
    "kernels of other packages do not fit",
    "imagebuilder check STACK",
)
DEVICE = _code(
    "device",
    "the GPUs in the container are not those of [target]",
    "kernels may be missing or fail",
    "run it on the machine it was made for, or correct [target]",
)
DRIVER = _code(
    "driver",
    "the driver is older than [target] promises",
    "CUDA does not start, or PTX of this image cannot be compiled",
    "update the driver",
)
FOLDER = _code(
    "folder",
    "a cache folder of the image cannot be written to, or /dev/shm is small",
    "every start compiles again, or NCCL fails",
    "mount a volume there; [acceptance] shm",
    "warning",
)

CODES = (
    MODEL_MISSING, DRAFT_MISMATCH, ALGORITHM, LOSSY, UNEQUAL, FEW_REQUESTS, FEW_ROUNDS, GPUS,
    SECRET_MISSING, DISTRIBUTION, IMPORT, TORCH, DEVICE, DRIVER, FOLDER,
)  # fmt: skip
