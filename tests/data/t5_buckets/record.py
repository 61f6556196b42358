"""Records T5's relative position buckets as transformers and torch compute them on a CPU.

usage: record.py > buckets.txt      (with torch and transformers installed)

Each line holds one setting: num_buckets, max_distance, "causal" or "both" (bidirectional), then
entries DISTANCE:BUCKET. An entry gives the bucket of all keys that are DISTANCE or more tokens
before the query, up to the DISTANCE of the next entry. For "both", a key after the query has the
bucket of a key at the same distance before the query, plus num_buckets / 2; the script checks this.
The settings are common ones, and settings in which some distance lies within 1e-5 of a bucket
boundary in exact arithmetic. There the rounding of the logarithm decides the bucket.
"""

import math

import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

COMMON = [(32, 128), (32, 256), (32, 20), (64, 128), (32, 1024), (16, 64), (128, 512), (256, 4096)]


def near_boundary(exact, own, max_distance):
    for distance in range(exact + 1, max_distance):
        place = math.log(distance / exact) / math.log(max_distance / exact) * (own - exact)
        if abs(place - round(place)) < 1e-5:
            return True
    return False


def record(buckets, max_distance, causal):
    own = buckets if causal else buckets // 2
    distances = torch.arange(0, max(max_distance, own) + 3)
    call = lambda relative: T5Attention._relative_position_bucket(
        relative, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
    )
    before = call(-distances).tolist()
    if not causal:
        after = call(distances).tolist()
        assert after[1:] == [own + bucket for bucket in before[1:]] and after[0] == 0
    rises = [f"{d}:{b}" for d, b in enumerate(before) if d == 0 or b != before[d - 1]]
    print(buckets, max_distance, "causal" if causal else "both", *rises)


def main():
    print(f"# torch {torch.__version__}, transformers {transformers.__version__}, CPU")
    for buckets, max_distance in COMMON:
        record(buckets, max_distance, True)
        record(buckets, max_distance, False)
    for own in range(4, 66):
        exact = own // 2
        for max_distance in range(exact + 2, 300):
            if near_boundary(exact, own, max_distance):
                record(own, max_distance, True)
                if max_distance % 5 == 0:
                    record(2 * own, max_distance, False)


if __name__ == "__main__":
    main()
