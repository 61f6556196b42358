#!/usr/bin/env python3
"""Records random LoRA adapters and the outputs that PEFT computes with them, for tests of adapters.

Needs torch, transformers and peft (recorded with 2.15.0, 5.24.0 and the version in each
adapter_config.json). The base models come from tests/data/families and tests/golden/cases.
Writes each adapter to tests/data/adapters/NAME, with the outputs in record.json and
record.safetensors. The values of all factors are representable in bf16, so that every stored type
gives the same outputs.

    python tools/adapter_oracle.py [NAME ...]    # the adapters with these names, or all
"""

import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

SOURCE = pathlib.Path(__file__).resolve().parents[1]
FAMILIES = SOURCE / "tests" / "data" / "families"
GOLDEN = SOURCE / "tests" / "golden" / "cases"
TARGET = SOURCE / "tests" / "data" / "adapters"
INPUTS = [[5, 17, 230, 9, 64, 1], [301, 8, 8, 90, 411, 3, 77, 12, 1]]
TARGETS = [[0, 33, 4, 250, 18], [0, 7, 400]]
SMALL_INPUTS = [[5, 17, 130, 9, 64, 1], [101, 8, 8, 90, 11, 3, 77, 12, 1]]  # vocabulary of 192

# name: (base model, stored type of the factors, arguments of LoraConfig)
ADAPTERS = {
    "t5-qv": (
        FAMILIES / "t5",
        torch.float32,
        {"r": 4, "lora_alpha": 8, "target_modules": ["q", "v"]},
    ),
    "flan-all": (
        FAMILIES / "flan-t5",
        torch.float16,
        {
            "r": 5,
            "lora_alpha": 6,
            "use_rslora": True,
            "target_modules": "all-linear",
            "rank_pattern": {"wi_0": 2, "decoder.block.1.layer.0.SelfAttention.o": 3},
            "alpha_pattern": {r"encoder\.block\.(0|1)\..*wo": 9, "EncDecAttention.k": 2.5},
        },
    ),
    "umt5-regex": (
        FAMILIES / "umt5",
        torch.bfloat16,
        {
            "r": 3,
            "lora_alpha": 7,
            "target_modules": r".*(encoder.*SelfAttention|decoder.*(SelfAttention|EncDecAttention))"
            r".*(q|v|k)$",
        },
    ),
    "t5-layers": (
        FAMILIES / "t5",
        torch.float32,
        {
            "r": 6,
            "lora_alpha": 12,
            "target_modules": ["k", "o", "wi", "wo", "lm_head"],
            "layers_to_transform": [1],
            "layers_pattern": "block",
            "exclude_modules": ["decoder.block.1.layer.1.EncDecAttention.k"],
        },
    ),
    "gpt2-conv": (
        FAMILIES / "gpt2",
        torch.float32,
        {
            "r": 4,
            "lora_alpha": 8,
            "fan_in_fan_out": True,
            "target_modules": ["c_attn", "c_proj", "c_fc", "lm_head"],
        },
    ),
    "t5-seqcls": (
        GOLDEN / "t5-seqcls",
        torch.float32,
        {
            "r": 2,
            "lora_alpha": 4,
            "task_type": "SEQ_CLS",
            "target_modules": ["q", "v"],
            "modules_to_save": ["classification_head"],
        },
    ),
    "t5-tokcls": (
        GOLDEN / "t5-tokcls",
        torch.float32,
        {"r": 2, "lora_alpha": 4, "task_type": "TOKEN_CLS", "target_modules": ["q", "wo"]},
    ),
    # Written in kohya's format.
    "kohya": (
        FAMILIES / "t5",
        torch.float16,
        {
            "r": 4,
            "lora_alpha": 3,
            "target_modules": r"encoder\..*\.(q|k|v|o|wi|wo)",
        },
    ),
    "longt5-some": (
        FAMILIES / "longt5",
        torch.float32,
        {
            "r": 3,
            "lora_alpha": 6,
            "target_modules": ["TransientGlobalSelfAttention.k", "v", "o", "wi_0"],
        },
    ),
}


def load_base(folder: pathlib.Path):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = getattr(transformers, config["architectures"][0])
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def randomize(model: peft.PeftModel, seed: int) -> None:
    """Sets every trained value to a random one that bf16 represents."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not value.requires_grad:
                continue
            scale = value.shape[-1] ** -0.5 if value.ndim == 2 else 0.3
            scale *= 1.5 if "lora_B" in name else 1.0
            value.copy_((torch.randn_like(value) * scale).bfloat16().float())


def causal(model) -> bool:
    return model.config.model_type == "gpt2"


def teacher_forced(model, row: list[int], target: list[int]) -> torch.Tensor:
    """Returns the logits of a target, computed one token at a time with the KV cache."""
    tokens = row if causal(model) else target
    encoded = None
    if not causal(model):
        encoded = model.get_encoder()(input_ids=torch.tensor([row]))
    cache, rows = None, []
    for token in tokens:
        given = torch.tensor([[token]])
        inputs = {"input_ids": given} if causal(model) else {"decoder_input_ids": given}
        if encoded is not None:
            inputs["encoder_outputs"] = encoded
        output = model(**inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1])
    return torch.stack(rows)


def record(model) -> tuple[dict, dict]:
    """Returns the inputs and the model's outputs: (lists for record.json, tensors for
    record.safetensors)."""
    if "Classification" in type(model).__name__:
        rows = [model(input_ids=torch.tensor([row])).logits[0] for row in SMALL_INPUTS]
        rows = [row if row.ndim == 2 else row[None] for row in rows]
        return {"inputs": SMALL_INPUTS}, {"logits": torch.cat(rows)}
    logits = [teacher_forced(model, *pair) for pair in zip(INPUTS, TARGETS, strict=True)]
    result = {"inputs": INPUTS, "targets": INPUTS if causal(model) else TARGETS, "searches": []}
    for options in ({"max_new_tokens": 12}, {"num_beams": 3, "max_new_tokens": 10}):
        found = []
        for row in INPUTS:
            ids = torch.tensor([row])
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, **options
            )
            found.append(output[0, len(row) if causal(model) else 1 :].tolist())
        result["searches"].append({"options": options, "ids": found})
    tensors = {"logits": torch.cat(logits)}
    if not causal(model):
        encoder = model.get_encoder()
        states = [encoder(input_ids=torch.tensor([row])).last_hidden_state[0] for row in INPUTS]
        tensors["states"] = torch.cat(states)
    return result, tensors


def write_kohya(folder: pathlib.Path, alpha: float) -> None:
    """Rewrites an adapter in kohya's format. Adds tensors for other models of the pipeline, which
    Quintet must ignore."""
    tensors = {}
    for name, value in load_file(folder / "adapter_model.safetensors").items():
        module, factor = name.removeprefix("base_model.model.").split(".lora_")
        key = "lora_te3_" + module.replace(".", "_")
        part = {"A.weight": "lora_down.weight", "B.weight": "lora_up.weight"}[factor]
        tensors[f"{key}.{part}"] = value
        tensors[f"{key}.alpha"] = torch.tensor(alpha, dtype=value.dtype)
    tensors["lora_unet_double_blocks_0_img_mlp_0.lora_down.weight"] = torch.ones(2, 3)
    tensors["lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha"] = torch.tensor(1.0)
    save_file(tensors, folder / "adapter.safetensors", {"ss_network_module": "networks.lora_flux"})
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (folder / name).unlink()


def main() -> None:
    for seed, (name, (base, dtype, arguments)) in enumerate(ADAPTERS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        folder = TARGET / name
        shutil.rmtree(folder, ignore_errors=True)
        model = load_base(base)
        plain = record(model)[1]["logits"]
        adapted = peft.get_peft_model(model, peft.LoraConfig(**arguments)).eval()
        randomize(adapted, seed)
        with torch.inference_mode():
            lists, tensors = record(adapted.base_model.model)
        change = ((tensors["logits"] - plain).abs().max() / plain.abs().max()).item()
        assert change > 0.05, (name, change)
        adapted.peft_config["default"].base_model_name_or_path = base.name
        # If an adapter targets lm_head, PEFT by default also saves the unchanged lm_head. Only
        # t5-layers keeps it, because one such example is enough.
        adapted.save_pretrained(
            folder, save_embedding_layers="auto" if base.name == "t5" else False
        )
        (folder / "README.md").unlink(missing_ok=True)
        weights = load_file(folder / "adapter_model.safetensors")
        for key, value in weights.items():
            assert "lora_" not in key or torch.equal(value.bfloat16().float(), value), name
        stored = {key: value.to(dtype).contiguous() for key, value in weights.items()}
        save_file(stored, folder / "adapter_model.safetensors", {"format": "pt"})
        lists["base"] = base.relative_to(SOURCE / "tests").as_posix()
        lists["change"] = round(change, 3)
        lists["peft"], lists["transformers"] = peft.__version__, transformers.__version__
        if name == "kohya":
            write_kohya(folder, arguments["lora_alpha"])
        text = json.dumps(lists, separators=(",", ":"))
        (folder / "record.json").write_text(text + "\n", encoding="utf-8")
        save_file(
            {key: value.float().contiguous() for key, value in tensors.items()},
            folder / "record.safetensors",
        )
        for file in folder.iterdir():
            file.chmod(0o644)
        print(f"{name}: {len(weights)} tensors, logits change by {change:.2f}")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
