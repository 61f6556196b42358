#!/usr/bin/env python3
"""Records random LongT5 models and the outputs of transformers for them: the golden cases
longt5-* of tests/golden/cases (tests/golden/README.md describes their files).

Needs torch, numpy, safetensors and transformers (recorded with 5.24.0). The outputs of a padded
batch are recorded, after a check that each row alone gives the same. Decoded sequences must not
depend on rounding: a case whose sequences change when noise is added to the log-probabilities gets
the next random seed. The recorded smallest_gap is the size of this noise.

    python tools/longt5_oracle.py
"""

import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

TARGET = pathlib.Path(__file__).resolve().parents[1] / "tests" / "golden" / "cases"
START = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
SMALL = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "layer_norm_epsilon": 1e-5,
}
# Head size, window and blocks of the published models.
LONG = {**SMALL, "d_kv": 64, "num_heads": 2, "num_decoder_layers": 1, "vocab_size": 64}
GENERATES, ENCODES = "LongT5ForConditionalGeneration", "LongT5EncoderModel"
# name: (class, configuration, number of tokens of each input)
CASES = {
    "longt5-local": (
        GENERATES,
        {
            **SMALL,
            "local_radius": 7,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
        [40, 1, 7, 8, 9, 15, 16, 17, 90],
    ),
    "longt5-local-long": (
        ENCODES,
        {**LONG, "feed_forward_proj": "gated-gelu"},
        [400, 129, 128, 257],
    ),
    "longt5-tglobal": (
        GENERATES,
        {
            **SMALL,
            "encoder_attention_type": "transient-global",
            "local_radius": 5,
            "global_block_size": 4,
        },
        [50, 1, 3, 4, 5, 7, 8, 11, 150],
    ),
    "longt5-tglobal-long": (
        GENERATES,
        {
            **LONG,
            "encoder_attention_type": "transient-global",
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
        [15, 600, 128, 257],
    ),
    "longt5-tglobal-encoder": (
        ENCODES,
        {
            **SMALL,
            "d_kv": 128,
            "num_heads": 1,
            "encoder_attention_type": "transient-global",
            "local_radius": 20,
            "global_block_size": 3,
            "feed_forward_proj": "gated-silu",
        },
        [100, 61, 2],
    ),
}
DECODES = [
    {"num_beams": 1},
    {"num_beams": 1, "repetition_penalty": 1.3, "min_new_tokens": 8},
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 4, "length_penalty": 2.0, "num_return_sequences": 2, "no_repeat_ngram_size": 2},
]
DECODER_TOKENS, NEW_TOKENS = 9, 16
NOISE, NOISY_RUNS = 1e-4, 3


class AddNoise(transformers.LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores + NOISE * (2 * torch.rand_like(scores) - 1)


def random_weights(model) -> dict[str, torch.Tensor]:
    """Replaces the weights by random ones, rounded to bf16, and returns those to store."""
    stored = {}
    own_head = not model.config.scale_decoder_outputs and hasattr(model, "lm_head")
    if own_head:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    for name, value in model.named_parameters():
        if "norm" in name:
            random = 1.0 + 0.3 * torch.randn_like(value)
        elif "relative_attention_bias" in name:
            random = 1.5 * torch.randn_like(value)
        elif name == "shared.weight":
            random = torch.randn_like(value)
        else:
            # The model does not scale scores by 1 / sqrt(d_kv), so that queries have to be small.
            size = 1.4 / model.config.d_kv**0.5 if name.endswith(".q.weight") else 1.0
            random = size * torch.randn_like(value) / value.shape[1] ** 0.5
        stored[name] = random.to(torch.bfloat16)
        value.data.copy_(stored[name])
    return stored


def inputs_of(lengths: list[int], vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(2, vocab, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    for row, length in enumerate(lengths):
        ids[row, length - 1] = 1
    return ids * mask, mask


def outputs_of(model, ids, mask, decoder_ids) -> dict[str, torch.Tensor]:
    if decoder_ids is None:
        return {"encoder_last_hidden_state": model(ids, attention_mask=mask).last_hidden_state}
    output = model(ids, attention_mask=mask, decoder_input_ids=decoder_ids)
    return {
        "encoder_last_hidden_state": output.encoder_last_hidden_state,
        "decoder_logits": output.logits,
    }


def check_padding(model, ids, mask, decoder_ids, outputs) -> None:
    """Checks that each row alone, without padding, has the outputs of the padded batch."""
    for row in range(len(ids)):
        length = int(mask[row].sum())
        decoder = None if decoder_ids is None else decoder_ids[row : row + 1]
        alone = outputs_of(model, ids[row : row + 1, :length], None, decoder)
        for name, value in alone.items():
            both = outputs[name][row, : value.shape[1]]
            limit = 2e-6 * float(outputs[name].abs().max())
            assert float((value[0] - both).abs().max()) < limit, (name, row)


def decode(model, ids, mask, options, noise=()) -> list[dict]:
    rows = []
    for row in range(len(ids)):
        output = model.generate(
            ids[row : row + 1, : int(mask[row].sum())],
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            logits_processor=transformers.LogitsProcessorList(noise),
            **options,
        )
        scores = output.sequences_scores.tolist() if options["num_beams"] > 1 else None
        sequences = output.sequences.tolist()
        rows.append({"sequences": sequences, "scores": scores, "smallest_gap": NOISE})
    return rows


def record(name: str, seed: int) -> bool:
    """Writes one case. Returns False if its decoded sequences depend on rounding."""
    kind, fields, lengths = CASES[name]
    torch.manual_seed(seed)
    config = transformers.LongT5Config(**fields, **START, architectures=[kind])
    model = getattr(transformers, kind)(config).eval()
    weights = random_weights(model)
    ids, mask = inputs_of(lengths, config.vocab_size)
    generates = kind == GENERATES
    decoder_ids = None
    if generates:
        decoder_ids = torch.randint(2, config.vocab_size, (len(ids), DECODER_TOKENS))
        decoder_ids[:, 0] = 0
    outputs = outputs_of(model, ids, mask, decoder_ids)
    check_padding(model, ids, mask, decoder_ids, outputs)
    decodes = []
    for options in DECODES if generates else []:
        decodes.append(
            {
                "options": {**options, "max_new_tokens": NEW_TOKENS, "do_sample": False},
                "rows": decode(model, ids, mask, options),
            }
        )
    for recorded, options in list(zip(decodes, DECODES, strict=False)) * NOISY_RUNS:
        noisy = decode(model, ids, mask, options, [AddNoise()])
        for row, other in zip(recorded["rows"], noisy, strict=True):
            if row["sequences"] != other["sequences"]:
                return False
    folder = TARGET / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    saved = {**fields, **START, "architectures": [kind], "model_type": "longt5"}
    (folder / "config.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tensors = {"input_ids": ids, "attention_mask": mask, **outputs}
    if generates:
        tensors["decoder_input_ids"] = decoder_ids
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "golden.safetensors")
    golden = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "kind": "seq2seq" if generates else "encoder",
        "decodes": decodes,
    }
    text = json.dumps(golden, separators=(",", ":"))
    (folder / "golden.json").write_text(text + "\n", encoding="utf-8")
    return True


def main() -> None:
    with torch.inference_mode():
        for name in CASES:
            seed = 1
            while not record(name, seed):
                seed += 1
            loaded = getattr(transformers, CASES[name][0]).from_pretrained(TARGET / name)
            print(f"{name}: seed {seed}, {loaded.num_parameters()} parameters")


if __name__ == "__main__":
    main()
