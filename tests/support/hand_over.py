"""What a proxy asks of a prefill engine that is to hand its KV over, as vLLM's own proxies write it."""

HAND_OVER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
