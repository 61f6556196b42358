#!/usr/bin/env python3
"""Records padded hidden states of transformers in tests/data/formats/padded.json.

The models are the T5 and UMT5 encoders of tests/golden/cases. Mode "attend" encodes the padded
input without an attention mask, as Flux, Stable Diffusion 3, CogVideoX and LTX-Video do. Mode
"zero" hides the padding tokens with an attention mask and sets their hidden states to zero, as Wan
does. Needs torch and transformers (recorded with 5.24.0).
usage: tools/padding_oracle.py
"""

import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOKENS = 12
INPUTS = [[5, 9, 17, 1], [3, 1], list(range(20, 40)) + [1], [8, 7, 6, 5, 4, 3, 2, 9, 11, 13, 15, 1]]


def encode(model, ids, mode):
    if len(ids) > TOKENS:
        ids = ids[: TOKENS - 1] + [1]
    padded = torch.tensor([ids + [0] * (TOKENS - len(ids))])
    with torch.inference_mode():
        if mode == "attend":
            return model(padded).last_hidden_state[0]
        mask = (torch.arange(TOKENS) < len(ids)).long()[None]
        states = model(padded, attention_mask=mask).last_hidden_state[0, : len(ids)]
    return torch.cat([states, states.new_zeros(TOKENS - len(ids), states.shape[1])])


def main():
    cases = []
    for name in ("t5-encoder", "umt5"):
        folder = ROOT / "tests/golden/cases" / name
        kind = transformers.UMT5EncoderModel if name == "umt5" else transformers.T5EncoderModel
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        for mode in ("attend", "zero"):
            for ids in INPUTS:
                states = encode(model, ids, mode)
                # Record only some values of each row: they suffice to detect a wrong row.
                kept = torch.cat([states[:, :4], states[:, -4:]], 1)
                rows = [[round(float(v), 6) for v in row] for row in kept]
                cases.append({"model": name, "mode": mode, "token_ids": ids, "states": rows})
    out = ROOT / "tests/data/formats/padded.json"
    recorded = {"tokens": TOKENS, "transformers": transformers.__version__, "cases": cases}
    out.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
