"""What is served, under which name and by which engine."""

from __future__ import annotations

from tests.support.bad_specs.document import BadSpec

BAD = (
    BadSpec(
        "a name that no Service can have",
        {"metadata.name": "chat.v2"},
        "metadata.name",
        "write at most 55 of the characters a-z, 0-9 and -, beginning with a letter",
    ),
    BadSpec(
        "vLLM without a model",
        {"spec.model.source": None},
        "spec",
        "model.source: write one of hub, pvc or hostPath: engine type VLLM needs a model",
    ),
    BadSpec(
        "a model from two places",
        {"spec.model.source.hostPath": "/models/llama"},
        "spec.model.source",
        "write exactly one of hub, pvc or hostPath",
    ),
    BadSpec(
        "a model from nowhere",
        {"spec.model.source": {}},
        "spec.model.source",
        "write exactly one of hub, pvc or hostPath",
    ),
    BadSpec(
        "a relative path on the node",
        {"spec.model.source": {"hostPath": "models/llama"}},
        "spec.model.source.hostPath",
        "write an absolute path on the node, such as /models/llama",
    ),
    BadSpec(
        "a path that leaves the volume",
        {"spec.model.source": {"pvc": {"claimName": "models", "path": "../secrets"}}},
        "spec.model.source.pvc.path",
        "write a path inside the volume, without a leading / and without ..",
    ),
    BadSpec(
        "a repository that is an address",
        {"spec.model.source.hub.repo": "https://host/owner/model"},
        "spec.model.source.hub.repo",
        "write the repository as owner/name, such as Qwen/Qwen3-8B",
    ),
    BadSpec(
        "a served name that looks like an option",
        {"spec.model.servedName": "--chat"},
        "spec.model.servedName",
        "write a name without spaces that begins with a letter or a digit",
    ),
    BadSpec(
        "vLLM with neither version nor image",
        {"spec.engine.version": None},
        "spec.engine",
        "write version (such as 0.33.0) or image: type VLLM needs one of them",
    ),
    BadSpec(
        "a vLLM release that the runtime does not support",
        {"spec.engine.version": "0.27.1"},
        "spec.engine",
        "version: write a release of vLLM 0.28 to 0.33, such as 0.33.0: the runtime supports no other",
    ),
    BadSpec(
        "a simulator with an image of its own",
        {"spec.engine": {"type": "Simulator", "image": "mine/sim:1"}},
        "spec.engine",
        "remove version and image: type Simulator runs in the image of spec.runtime",
    ),
    BadSpec(
        "an engine that this release cannot run",
        {"spec.engine.type": "TensorRT"},
        "spec.engine.type",
        "VLLM",
    ),
)
