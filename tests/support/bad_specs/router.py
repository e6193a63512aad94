"""The router in front of a fleet."""

from __future__ import annotations

from tests.support.bad_specs.attached import BY_LABEL, attached
from tests.support.bad_specs.document import BadSpec

BAD = (
    BadSpec(
        "a router of another engine",
        {"spec.router": {"type": "SGLangRouter", "image": "example.com/router:1", "serviceAccountName": "finder"}},
        "spec",
        "router.type: write a router that speaks to the engine type (VLLMRouter for VLLM or Simulator; "
        "SGLangRouter for SGLang), or None",
    ),
    BadSpec(
        "SGLang's router by Services, with prefill and decode apart",
        {"spec.router": {"type": "SGLangRouter", "image": "example.com/router:1"}},
        "spec",
        "router.serviceAccountName: write an account that may get, list and watch pods",
    ),
    BadSpec(
        "a busy retry that the router would not do",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "busyRetryTimeout": "5s"}},
        "spec",
        "router.busyRetryTimeout: leave it out: where prefill and decode are apart, VLLMRouter never tries again",
    ),
    BadSpec(
        "a busy retry without an end",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "busyRetryTimeout": "11m"}},
        "spec.router.busyRetryTimeout",
        'write a duration from 0s to 10m with its unit (ms, s, m, h), such as "5s"',
    ),
    BadSpec(
        "a router without an image",
        {"spec.router": {"type": "VLLMRouter"}},
        "spec.router",
        "write image: an image that holds the router, with a release tag: the operator assumes none",
    ),
    BadSpec(
        "a router without a type",
        {"spec.router": {"args": ["--policy", "random"]}},
        "spec.router",
        "write type, such as VLLMRouter: without it there is no router, and the other fields count for nothing",
    ),
    BadSpec(
        "a router's argument that is the operator's",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "args": ["--retry-max-retries=9"]}},
        "spec.router",
        "args: remove what the operator writes itself (--host, --port, --prometheus-host",
    ),
    BadSpec(
        "an account that no account can be named",
        {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1", "serviceAccountName": "Finder"}},
        "spec.router.serviceAccountName",
        "write the name of a ServiceAccount of the policy's namespace",
    ),
    BadSpec(
        "a router before pods of others",
        attached(BY_LABEL) | {"spec.router": {"type": "VLLMRouter", "image": "example.com/router:1"}},
        "spec",
        "router: remove it: attached pods are behind the Services, and the router, of whoever makes them",
    ),
)
