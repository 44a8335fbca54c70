"""The OpenAI-compatible server with MTP and DSA-CP on. Needs vLLM on a CPU."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dsacp.vllm.engine import run_forked
from dsacp.vllm.processes import ends_with_us
from dsacp.vllm.report import read_reports
from dsacp.vllm.scenario import Scenario, environment, make_prompts

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM: nox -s vllm", allow_module_level=True)

from dsacp.vllm_cpu_kit import VOCAB, write_model

SCENARIO = Scenario(prompts=(5, 70, 17, 33, 64, 9, 100, 21), max_tokens=12)
READY_S = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read() or b"{}")


def wait_until_ready(url: str, process: subprocess.Popen, log) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}")
        try:
            ask(f"{url}/v1/models")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    pytest.fail(f"the server was not ready in {READY_S} s:\n{log.read_text()[-4000:]}")


@pytest.fixture
def server(tmp_path):
    model, port = write_model(tmp_path / "model"), free_port()
    scenario = replace(SCENARIO, draft_tokens=3, dsacp=True)
    options = {
        "load-format": "dsacp_seeded", "dtype": "bfloat16", "max-model-len": "256",
        "max-num-seqs": "8", "max-num-batched-tokens": "256", "tokenizer-mode": "hf",
        "host": "127.0.0.1", "port": str(port), "served-model-name": "tiny",
        "speculative-config": '{"method": "mtp", "num_speculative_tokens": 3}',
        "additional-config": '{"enable_dsa_cp": true}',
    }  # fmt: skip
    # `vllm serve` asks for a distribution named vllm, which vllm-cpu is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--enforce-eager", "--no-enable-prefix-caching"]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    log = tmp_path / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment(scenario, tmp_path / "reports")},
            process_group=0,
        )
        with ends_with_us(process.pid):
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, log)
            yield url
            process.terminate()
            process.wait(60)


def test_concurrent_completions_equal_plain_decoding(server, tmp_path, figures) -> None:
    prompts = [prompt["prompt_token_ids"] for prompt in make_prompts(SCENARIO, VOCAB)]

    def complete(prompt: list[int]) -> list[int]:
        body = {
            "model": "tiny", "prompt": prompt, "max_tokens": SCENARIO.max_tokens,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        return ask(f"{server}/v1/completions", body)["choices"][0]["token_ids"]

    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(complete, prompts))
    reports = read_reports(tmp_path / "reports")
    assert sum(report["calls"].get("build_for_drafting[2]", 0) for report in reports) > 0
    assert [line for report in reports for line in report["violations"]] == []
    plain = run_forked(replace(SCENARIO, options={"max_model_len": 256}))
    served = replace(plain, tokens=answers, reports=reports)
    figures("HTTP, 8 at once, MTP=3 ours", served, plain)
    assert answers == plain.tokens
