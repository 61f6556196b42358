"""Writes LoRA adapters in PEFT's format."""

import json
import pathlib

import numpy as np

from server_process import G2P


def write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    header, values = {}, b""
    for name, tensor in tensors.items():
        offsets = [len(values), len(values) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": offsets}
        values += tensor.astype("<f4").tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)


def make_adapter(folder: pathlib.Path, seed: int, rank: int = 4) -> pathlib.Path:
    """Writes an adapter for the queries and values of the shipped model's attention."""
    random = np.random.default_rng(seed)
    config = json.loads((G2P / "config.json").read_text())
    width, inner = config["d_model"], config["num_heads"] * config["d_kv"]
    tensors = {}
    for stack in ("encoder", "decoder"):
        for block in range(config["num_layers"]):
            for module in "qv":
                name = f"base_model.model.{stack}.block.{block}.layer.0.SelfAttention.{module}"
                a = random.normal(0, 0.3, (rank, width)).astype(np.float32)
                b = random.normal(0, 0.3, (inner, rank)).astype(np.float32)
                tensors[f"{name}.lora_A.weight"] = a
                tensors[f"{name}.lora_B.weight"] = b
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    options = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": ["SelfAttention.q", "SelfAttention.v"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(options))
    return folder
