"""FAT5 in plain torch on a CPU: measures the errors of bf16 outputs against fp32 outputs.

usage: fat5_bf16.py [CASES]          check the FAT5 seq2seq cases, print their errors and write
                                     bf16.json next to golden.json
       fat5_bf16.py --make [CASES]   first create the cases fat5-rope-odd and fat5-t5-long

Needs torch, numpy and safetensors. No test runs this script. In fp32 the outputs must equal the
recorded outputs of a case within 5e-5 of their maximum, otherwise the script fails. It then
computes the same outputs in bf16 in two modes:

- "reference": everything in bf16, as model.to(torch.bfloat16) runs the FAT5 reference
  (attention_type ref), including residual stream, scores, bias, rotary tables and outputs of norms;
  softmax and mean squares in fp32.
- "f32_residual": residual stream, scores, bias and rotary tables in fp32; inputs and outputs of
  GEMMs and the attention probabilities in bf16. This is what Quintet does on a GPU.

bf16.json contains the errors of both modes, max |x - golden| / max |golden| per tensor. golden_test
prints them next to its own errors in bf16.
"""

import argparse
import json
import math
import pathlib

import numpy
import torch
from safetensors.torch import load_file, save_file

CASES = pathlib.Path(__file__).parent / "cases"
TOLERANCE = 5e-5
BF16 = torch.bfloat16


class Fat5:
    """The model of one checkpoint.

    `mode` selects the dtypes of the computation: "f32", "reference" or "f32_residual".
    """

    def __init__(self, config, weights, mode):
        self.c, self.mode = config, mode
        # Dtype of activations in GEMMs.
        self.low = torch.float32 if mode == "f32" else BF16
        # Dtype of the residual stream and of the scores.
        self.wide = BF16 if mode == "reference" else torch.float32
        self.w = {name: value.to(self.low) for name, value in weights.items()}

    def linear(self, name, x):
        return x.to(self.low) @ self.w[name + ".weight"].T

    def norm(self, name, x):
        wide = x.float()
        normed = (
            wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.c["layer_norm_epsilon"])
        ).to(self.wide)
        return (normed * self.w[name + ".weight"].to(self.wide)).to(self.low)

    def split(self, x):
        return x.view(x.shape[0], self.c["num_heads"], self.c["d_kv"]).transpose(0, 1)

    def rotate(self, x, key):
        width = int(self.c["d_kv"] * self.c["rotary_emb_fraction"])
        half = width // 2
        pairs = torch.arange(half, dtype=torch.float32)
        # The reference rounds the position indices, and the tables of their cosines and sines,
        # to the dtype of the residual stream.
        positions = torch.arange(x.shape[1], dtype=torch.float32).to(self.wide).float()
        angles = positions[:, None] * self.c["rotary_base"] ** (-2 * pairs / width)
        scale = torch.ones_like(angles)
        if self.c.get("rotary_scale_base"):
            zeta = (2 * pairs + 0.4 * width) / (1.4 * width)
            power = (torch.arange(x.shape[1]) - self.c["max_sequence_length"] // 2) / self.c[
                "rotary_scale_base"
            ]
            scale = zeta ** power[:, None]
            scale = 1 / scale if key else scale
        cos, sin = ((f(angles) * scale).to(self.wide) for f in (torch.cos, torch.sin))
        if self.c["rotary_interleaved"]:
            a, b = x[..., 0:width:2].to(self.wide), x[..., 1:width:2].to(self.wide)
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = x[..., :half].to(self.wide), x[..., half:width].to(self.wide)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((turned.to(self.low), x[..., width:]), -1)

    def bias(self, stack, length):
        name = f"{stack}.block.0.self_attention_layer.self_attention.pe_encoding."
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]  # key - query
        kind = self.c["position_encoding_type"]
        if kind == "t5":
            buckets, first = self.c["relative_attention_num_buckets"], torch.zeros_like(distance)
            if stack == "encoder":
                buckets //= 2
                first = buckets * (distance > 0)
                far = distance.abs()
            else:
                far = (-distance).clamp(min=0)
            exact = buckets // 2
            log = (
                torch.log(far.float() / exact)
                / math.log(self.c["relative_attention_max_distance"] / exact)
                * (buckets - exact)
            )
            bucket = first + torch.where(
                far < exact, far, (exact + log.clamp(min=0).long()).clamp(max=buckets - 1)
            )
            return (
                self.w[name + "relative_attention_bias.weight"]
                .to(self.wide)[bucket]
                .permute(2, 0, 1)
            )
        if kind == "ALiBi":
            heads = self.c["num_heads"]
            power = 1 << (heads.bit_length() - 1)
            slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
            slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * (heads - power), 2)]
            return (-torch.tensor(slopes)[:, None, None] * distance.abs()).to(self.wide)
        return None  # RoPE, none

    def attend(self, name, x, source, bias, causal):
        q, k, v = (
            self.split(self.linear(f"{name}.W{part}", y))
            for part, y in (("q", x), ("k", source), ("v", source))
        )
        if self.c["position_encoding_type"] == "RoPE":
            q, k, v = self.rotate(q, False), self.rotate(k, True), self.rotate(v, True)
        scale = self.c["attention_scale"] or 1 / math.sqrt(self.c["num_heads"])
        scores = (q.to(self.wide) @ k.to(self.wide).transpose(1, 2)) * scale
        if bias is not None:
            scores = scores + bias
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, -math.inf)
        probabilities = torch.softmax(scores.float(), -1).to(self.low)
        return self.linear(name + ".o", (probabilities @ v).transpose(0, 1).flatten(1))

    def feed_forward(self, name, x):
        gelu = lambda y: (
            torch.nn.functional.gelu(y, approximate="tanh")
            if self.c["use_gelu_act"]
            else torch.relu(y)
        )
        if self.c["use_glu_mlp"]:
            inner = gelu(self.linear(name + ".act.wi_0", x)) * self.linear(name + ".act.wi_1", x)
        else:
            inner = gelu(self.linear(name + ".act.wi", x))
        return self.linear(name + ".wo", inner)

    def stack(self, name, ids, encoded=None):
        x = self.w["shared.weight"][ids].to(self.wide)
        bias = self.bias(name, len(ids))
        for layer in range(self.c["num_layers" if encoded is None else "num_decoder_layers"]):
            block = f"{name}.block.{layer}."
            inner = self.norm(block + "self_attention_layer.layer_norm", x)
            x = x + self.attend(
                block + "self_attention_layer.self_attention",
                inner,
                inner,
                bias,
                encoded is not None,
            ).to(self.wide)
            if encoded is not None:
                inner = self.norm(block + "cross_attention_layer.layer_norm", x)
                x = x + self.attend(
                    block + "cross_attention_layer.cross_attention", inner, encoded, None, False
                ).to(self.wide)
            inner = self.norm(block + "ff_layer.layer_norm", x)
            x = x + self.feed_forward(block + "ff_layer", inner).to(self.wide)
        return self.norm(name + ".final_layer_norm", x)

    def run(self, inputs, decoder_inputs):
        states, logits = [], []
        with torch.no_grad():
            for ids, decoder_ids in zip(inputs, decoder_inputs):
                states.append(self.stack("encoder", ids))
                logits.append(
                    self.linear("lm_head", self.stack("decoder", decoder_ids, states[-1]))
                )
        return {
            "encoder_last_hidden_state": torch.stack(states).float(),
            "decoder_logits": torch.stack(logits).float(),
        }


def errors(outputs, golden):
    return {
        name: float((x - golden[name]).abs().max() / golden[name].abs().max())
        for name, x in outputs.items()
    }


def check(folder):
    config = json.loads((folder / "config.json").read_text())
    weights, golden = (
        load_file(folder / "model.safetensors"),
        load_file(folder / "golden.safetensors"),
    )
    run = lambda mode: errors(
        Fat5(config, weights, mode).run(golden["input_ids"], golden["decoder_input_ids"]), golden
    )
    exact = run("f32")
    if max(exact.values()) > TOLERANCE:
        raise SystemExit(
            f"{folder.name}: fp32 is off by {exact}, more than {TOLERANCE}: "
            "this is not the recorded model"
        )
    found = {mode: run(mode) for mode in ("reference", "f32_residual")}
    (folder / "bf16.json").write_text(json.dumps(found, indent=1) + "\n")
    print(
        folder.name,
        *(
            f"{mode} {name} {error:.2g};"
            for mode, tensors in {"f32": exact, **found}.items()
            for name, error in tensors.items()
        ),
    )


def make(folder, base, changes, length, decoder_length, seed):
    """Creates a case from the model of the case `base`, with `changes` to its config.json.

    The weights are random, with the mean and standard deviation of the tensors of `base`.
    """
    old = json.loads((CASES / base / "config.json").read_text())
    config = {**old, **changes}
    sizes = {old[k]: config[k] for k in ("vocab_size", "d_model", "d_ff")} | {
        old["d_kv"] * old["num_heads"]: config["d_kv"] * config["num_heads"]
    }
    random = numpy.random.default_rng(seed)
    weights = {}
    for name, value in load_file(CASES / base / "model.safetensors").items():
        if name.endswith("relative_attention_bias.weight"):
            shape = (value.shape[0], config["num_heads"])
        else:
            shape = tuple(sizes[n] for n in value.shape)
        values = random.normal(float(value.float().mean()), float(value.float().std()), shape)
        weights[name] = torch.tensor(values, dtype=BF16)
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.embed_tokens.weight"] = weights["shared.weight"].clone()
    ids = lambda count: torch.tensor(random.integers(2, config["vocab_size"], (2, count)))
    inputs, decoder_inputs = ids(length), ids(decoder_length)
    decoder_inputs[:, 0] = config["decoder_start_token_id"]
    folder.mkdir(exist_ok=True)
    outputs = Fat5(config, weights, "f32").run(inputs, decoder_inputs)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "golden.json").write_text(
        json.dumps({"kind": "seq2seq", "note": "computed in fp32 on CPU by fat5_bf16.py"}) + "\n"
    )
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    save_file(
        {"input_ids": inputs, "decoder_input_ids": decoder_inputs, **outputs},
        folder / "golden.safetensors",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="?", type=pathlib.Path, default=CASES)
    parser.add_argument("--make", action="store_true")
    args = parser.parse_args()
    if args.make:
        odd = {
            "d_kv": 24,
            "num_heads": 3,
            "d_model": 56,
            "d_ff": 88,
            "vocab_size": 61,
            "rotary_emb_fraction": 0.75,
        }
        make(args.cases / "fat5-rope-odd", "fat5-rope", odd, 211, 157, 16)
        make(args.cases / "fat5-t5-long", "fat5-t5", {"vocab_size": 61}, 701, 307, 17)
    for folder in sorted(args.cases.glob("fat5-*")):
        kind = json.loads((folder / "golden.json").read_text())["kind"]
        config = json.loads((folder / "config.json").read_text())
        if (
            kind == "seq2seq"
            and config["position_encoding_type"] in ("t5", "RoPE", "ALiBi")
            and config["alibi_mode"] == "symetric"
        ):
            check(folder)


if __name__ == "__main__":
    main()
