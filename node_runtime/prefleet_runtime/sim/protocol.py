"""The wire format of the simulated server: OpenAI completions as vLLM speaks them, parsed and rendered.

Tokens: a prompt given as text counts one token for every 4 bytes of UTF-8 begun (the usual rule of thumb for
English; nothing reads the text); a prompt given as token ids counts its ids. The k-th generated token is the
text " k": " 1", " 2", ... Answers end with finish_reason "length", since the simulator knows no EOS.

Ignored knowingly, since they choose among tokens that are not there: temperature, top_p, top_k, seed, stop,
penalties, logit_bias, ignore_eos, min_tokens. `priority`, or the header X-Vllm-Priority in its place, is handed
to the queue, which heeds it only if the policy trusts clients; as in vLLM, a header that is no number is passed over.
Refused with a sentence: what would change the shape of an answer (`REFUSED`). Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

PRIORITY_HEADER = "X-Vllm-Priority"
BYTES_PER_TOKEN = 4
DEFAULT_MAX_TOKENS = 16
MAX_PRIORITY = 2**63 - 1

REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "prompt_logprobs": (),
    "suffix": (),
    "prompt_embeds": (),
    "return_token_ids": (False,),
    "use_beam_search": (False,),
}
"""Fields that the simulator refuses, with the values (besides null) that ask for nothing."""


class ApiError(Exception):
    """An answer that is an error: the message is a sentence, `param` the field that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """vLLM's error document."""
        kind = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}
        error = {"message": self.message, "type": kind.get(self.status, "Error"), "param": self.param}
        return {"error": error | {"code": self.status}}


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """Where a prefill pod keeps the KV of a prompt, from its `kv_transfer_params`."""

    engine_id: str
    request_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What requests are checked against."""

    name: str
    max_model_len: int
    role: str


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A checked request: `prompts` are lengths in tokens, one answer each; `max_tokens` goes with each."""

    prompts: tuple[int, ...]
    max_tokens: tuple[int, ...]
    stream: bool
    include_usage: bool
    keep_kv: bool
    remote_kv: RemoteKv | None
    priority: int


def parse_completion(body: bytes, model: ServedModel, priority_header: str | None = None) -> CompletionCall:
    """Check a request body; `priority_header` is the value of `PRIORITY_HEADER`, if it was sent.

    Raises:
        ApiError: 400 or 404 with a sentence that names the field.
    """
    raw = _json_object(body)
    _check_model(raw.get("model"), model)
    _refuse(raw)
    prompts = _prompt_lengths(raw.get("prompt"))
    stream = _boolean(raw, "stream")
    keep_kv, remote_kv = _kv_transfer(raw.get("kv_transfer_params"), model.role)
    if (keep_kv or remote_kv) and len(prompts) != 1:
        raise ApiError(400, f"kv_transfer_params goes with one prompt, not {len(prompts)}.", "prompt")
    if keep_kv and stream:
        raise ApiError(400, "stream must be false with do_remote_decode: the answer carries the hand-over.", "stream")
    return CompletionCall(
        prompts=prompts,
        max_tokens=tuple(_max_tokens(raw, length, model.max_model_len) for length in prompts),
        stream=stream,
        include_usage=_include_usage(raw.get("stream_options"), stream),
        keep_kv=keep_kv,
        remote_kv=remote_kv,
        priority=_priority(raw, priority_header),
    )


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not JSON that can be read: {error}.") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "The request body must be a JSON object with model and prompt.")
    return raw


def _check_model(name: Any, model: ServedModel) -> None:
    if name is not None and name != model.name:
        raise ApiError(404, f"The model `{name}` does not exist: this server has `{model.name}`.", "model")


def _refuse(raw: dict[str, Any]) -> None:
    for name, harmless in REFUSED.items():
        value = raw.get(name)
        if value is not None and value not in harmless:
            raise ApiError(400, f"{name} is not supported by the simulated engine: leave it out.", name)


def _prompt_lengths(prompt: Any) -> tuple[int, ...]:
    """Lengths of one text, one list of token ids, or a list of either."""
    if isinstance(prompt, str):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise ApiError(400, "prompt must be a text, a list of token ids, or a non-empty list of those.", "prompt")
    if isinstance(prompt[0], int):
        prompt = [prompt]
    return tuple(_length(entry) for entry in prompt)


def _length(entry: Any) -> int:
    if isinstance(entry, str):
        size = len(entry.encode("utf-8", "surrogatepass"))
        if size:
            return -(-size // BYTES_PER_TOKEN)
    elif isinstance(entry, list) and entry:
        # Exactly int: a bool is an int to Python and no token to anyone.
        if all(type(token) is int and token >= 0 for token in entry):
            return len(entry)
        raise ApiError(400, "prompt must hold token ids that are whole numbers, 0 or more.", "prompt")
    raise ApiError(400, "prompt is empty: give at least one token.", "prompt")


def _max_tokens(raw: dict[str, Any], length: int, max_model_len: int) -> int:
    """vLLM's rule: 16 by default, null for all that the context has left."""
    wanted = raw.get("max_tokens", DEFAULT_MAX_TOKENS)
    room = max_model_len - length
    if wanted is None:
        wanted = max(1, room)
    if type(wanted) is not int or wanted < 1:
        raise ApiError(400, f"max_tokens must be a whole number, at least 1, got {wanted!r}.", "max_tokens")
    if wanted > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has {length} and"
            f" max_tokens asks for {wanted}: shorten prompt or lower max_tokens.",
            "max_tokens" if room > 0 else "prompt",
        )
    return wanted


def _priority(raw: dict[str, Any], header: str | None) -> int:
    """What the client wants, lower first: the header's number goes before the body's."""
    wanted = raw.get("priority", 0)
    if type(wanted) is not int or abs(wanted) > MAX_PRIORITY:
        raise ApiError(400, f"priority must be a whole number of 64 bits, got {wanted!r}.", "priority")
    try:
        return wanted if header is None else int(header)
    except ValueError:
        return wanted


def _boolean(raw: dict[str, Any], name: str) -> bool:
    value = raw.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false, got {value!r}.", name)
    return value


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise ApiError(400, "stream_options goes with stream: true only.", "stream_options")
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object such as {include_usage: true}.", "stream_options")
    return _boolean(options, "include_usage")


def _kv_transfer(params: Any, role: str) -> tuple[bool, RemoteKv | None]:
    """(whether to keep the KV for a decode pod, where a prefill pod keeps it)."""
    if params is None:
        return False, None
    if not isinstance(params, dict):
        raise ApiError(400, "kv_transfer_params must be an object.", "kv_transfer_params")
    keep, fetch = _boolean(params, "do_remote_decode"), _boolean(params, "do_remote_prefill")
    if keep and fetch:
        raise ApiError(
            400,
            "kv_transfer_params asks for both do_remote_decode and do_remote_prefill: give one.",
            "kv_transfer_params",
        )
    for wanted, field, needed in (
        (keep, "do_remote_decode", "prefill"),
        (fetch, "do_remote_prefill", "decode"),
    ):
        if wanted and role != needed:
            raise ApiError(
                400,
                f"{field} goes to a {needed} pod, and this is a {role} pod: check the router.",
                "kv_transfer_params",
            )
    return keep, _remote_kv(params) if fetch else None


def _remote_kv(params: dict[str, Any]) -> RemoteKv:
    for name in ("remote_engine_id", "remote_request_id", "remote_host"):
        if not isinstance(params.get(name), str) or not params[name]:
            raise ApiError(400, f"kv_transfer_params.{name} must be what the prefill answered.", "kv_transfer_params")
    port = params.get("remote_port")
    if type(port) is not int or not 0 < port < 65536:
        raise ApiError(400, f"kv_transfer_params.remote_port must be a port, got {port!r}.", "kv_transfer_params")
    return RemoteKv(params["remote_engine_id"], params["remote_request_id"], params["remote_host"], port)


def hand_over(kv: RemoteKv, num_tokens: int, blocks: int) -> dict[str, Any]:
    """`kv_transfer_params` of a prefill answer, with NixlConnector's keys; a router passes them on unread.

    The blocks are numbered from 0: the simulated cache counts blocks and gives them no address.
    """
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(blocks))],
        "remote_engine_id": kv.engine_id,
        "remote_request_id": kv.request_id,
        "remote_host": kv.host,
        "remote_port": kv.port,
        "tp_size": 1,
        "remote_num_tokens": num_tokens,
    }


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "total_tokens": total, "completion_tokens": completion_tokens}


def token_text(index: int) -> str:
    """Text of the generated token of that number (the first is 1)."""
    return f" {index}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Renders the answers of one call. Stream chunks come from a template: no JSON is built per token."""

    completion_id: str
    created: int
    model: str
    _head: str = ""

    @classmethod
    def begin(cls, completion_id: str, created: int, model: str) -> Answer:
        fields = {"id": completion_id, "object": "text_completion", "created": created, "model": model}
        return cls(completion_id, created, model, "data: " + json.dumps(fields, separators=(",", ":"))[:-1])

    def chunk(self, choice: int, token: int, last: bool) -> str:
        """One server-sent event with the token of that number."""
        reason = '"length"' if last else "null"
        return (
            f'{self._head},"choices":[{{"index":{choice},"text":"{token_text(token)}","logprobs":null,'
            f'"finish_reason":{reason},"stop_reason":null}}]}}\n\n'
        )

    def end(self, counts: dict[str, int] | None) -> str:
        """The last events: usage if it was asked for, then [DONE]."""
        tail = f'{self._head},"choices":[],"usage":{json.dumps(counts)}}}\n\n' if counts is not None else ""
        return tail + "data: [DONE]\n\n"

    def whole(
        self, generated: list[int], counts: dict[str, int], kv_transfer_params: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The answer without streaming: `generated` tokens per choice."""
        return {
            "id": self.completion_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [
                {
                    "index": index,
                    "text": "".join(token_text(token + 1) for token in range(tokens)),
                    "logprobs": None,
                    "finish_reason": "length",
                    "stop_reason": None,
                }
                for index, tokens in enumerate(generated)
            ],
            "usage": counts,
            "kv_transfer_params": kv_transfer_params,
        }
