"""Real vLLM servers on the CPU, small and without weights, that publish over ZMQ what they cache. Need `.venv-vllm`."""

import contextlib
import json
import os
import signal
import time
import urllib.request

from conftest import HERE, PATIENCE_S, Process, free_port

PYTHON = HERE.parents[1] / ".venv-vllm" / "bin" / "python"
BLOCK_SIZE = 32
BLOCKS = 260
START_S = 300
ANSWER_TOKENS = 24

# What is cached does not depend on weights.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "float16",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


class Vllm:
    """One server with its publisher, at the same addresses in every life; to kvtide it is `rank`."""

    def __init__(self, number, folder):
        self.rank = (number, 0)
        self.name, self.folder = f"vllm-{number}", folder
        self.http, self.events, self.replay = free_port(), free_port(), free_port()
        self.lives = 0

    def start(self):
        publisher = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # With a star it binds; with an address it would connect to one.
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://127.0.0.1:{self.replay}",
            "topic": "kv",
        }
        options = {
            "--model": self.folder / "model",
            "--served-model-name": "tiny",
            "--load-format": "dummy",
            "--dtype": "float32",
            "--max-model-len": 4096,
            "--block-size": BLOCK_SIZE,
            "--num-gpu-blocks-override": BLOCKS,
            "--prefix-caching-hash-algo": "sha256_cbor",
            "--host": "127.0.0.1",
            "--port": self.http,
            "--kv-events-config": json.dumps(publisher),
        }
        flags = ["--skip-tokenizer-init", "--enforce-eager", "--enable-prompt-tokens-details"]
        arguments = [str(part) for option in options.items() for part in option]
        # The routes of a development server have `reset_prefix_cache`.
        of_vllm = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1"}
        self.lives += 1
        with open(self.folder / f"{self.name}-{self.lives}.log", "w") as log:
            self.process = Process(
                *[PYTHON, "-m", "vllm.entrypoints.openai.api_server"],
                *arguments,
                *flags,
                env={**os.environ, **of_vllm},
                stdout=log,
                stderr=log,
                # A group of its own: the engine is another process, and goes with it.
                start_new_session=True,
            )

    def wait(self):
        deadline = time.monotonic() + START_S
        while True:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.http}/health", timeout=2)
            except OSError as error:
                ended = self.process.child.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} does not serve: see {self.folder}") from error
                time.sleep(0.5)

    def kill(self):
        if self.lives and self.process.child.poll() is None:
            os.killpg(self.process.child.pid, signal.SIGKILL)
            self.process.child.wait()

    def _post(self, path, body=None, timeout=PATIENCE_S):
        data = b"" if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.http}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.read()

    def complete(self, prompt):
        """Runs a prompt. Returns the tokens of the answer, and how many of the prompt's were cached."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
            "return_token_ids": True,
        }
        answer = json.loads(self._post("/v1/completions", body, timeout=120))
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["token_ids"], (details or {}).get("cached_tokens") or 0

    def reset_prefix_cache(self):
        self._post("/reset_prefix_cache")


@contextlib.contextmanager
def two_servers(folder):
    """Two servers that serve, and end with the block."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    servers = [Vllm(number, folder) for number in (1, 2)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
