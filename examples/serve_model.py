#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""serve_model.py FOLDER [--port PORT] [--ask TEXT]: serves a transformers model from a folder on a mount.

If the folder is empty, a small model with random weights is made there; its tokens are single bytes, so it needs no tokenizer.
Nothing in here is about Sluice but the first two lines after the imports. Runs on the CPU if there is no GPU.

    python examples/serve_model.py /mnt/pool/tiny --port 8000 &
    curl -d 'once upon a time' http://localhost:8000

With --ask, it asks itself once and ends. Needs transformers and torch.
"""
import argparse
import http.server
import pathlib
import sys
import threading
import time
import urllib.request

import sluice

sluice.accelerate()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402

# %% The model
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--ask")
arguments = parser.parse_args()

if not (arguments.folder / "config.json").exists():
    small = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
                        num_key_value_heads=2, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    LlamaForCausalLM(small).save_pretrained(arguments.folder)

# %% Load it
begun = time.perf_counter()
device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained(arguments.folder, device_map=device)
print(f"{sum(weight.numel() for weight in model.parameters())} weights on {model.device} in {time.perf_counter() - begun:.3f} s")
tokenizer = None
if any(arguments.folder.glob("tokenizer*")):
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
elif model.config.vocab_size > 256:
    sys.exit(f"{arguments.folder} has no tokenizer, and the tokens of this model are not bytes; copy its tokenizer there, too")


def complete(text):
    tokens = tokenizer(text.decode())["input_ids"] if tokenizer else list(text)
    answer = model.generate(torch.tensor([tokens], device=model.device), max_new_tokens=20, do_sample=False)[0].tolist()
    return tokenizer.decode(answer, skip_special_tokens=True).encode() if tokenizer else bytes(answer)


# %% Serve it
class Completion(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        answer = complete(text)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("localhost", arguments.port), Completion)
print(f"serving {arguments.folder} on http://localhost:{server.server_port}", flush=True)
if arguments.ask is None:
    server.serve_forever()
threading.Thread(target=server.serve_forever, daemon=True).start()
with urllib.request.urlopen(f"http://localhost:{server.server_port}", data=arguments.ask.encode()) as response:
    answer = response.read()
print(f"asked {arguments.ask!r}, answered {len(answer)} bytes", "that begin with it" if answer.startswith(arguments.ask.encode()) else "")
sys.exit(0)
