#!/bin/sh
# rejects_test.sh GOLDEN_TEST CASES: checks that golden_test can fail. Damages copies of cases and
# expects exit code 1 with the reason on the line of the case.
set -eu
golden_test=$1
cases=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
failures=0

# expect NAME TEXT: runs golden_test on $root/NAME and then deletes that folder.
expect() {
  status=0
  output=$("$golden_test" "$root/$1" 2>&1) || status=$?
  if [ "$status" -ne 1 ] || ! printf '%s\n' "$output" | grep -q "$2"; then
    printf 'FAIL %s: exit %s, expected 1 and "%s" in:\n%s\n' "$1" "$status" "$2" "$output"
    failures=1
  fi
  rm -rf "${root:?}/$1"
}

# copy NAME CASE: creates the folder NAME with a copy of one case.
copy() {
  mkdir "$root/$1"
  cp -r "$cases/$2" "$root/$1/$2"
  chmod -R u+w "$root/$1"
}

expect no_such_folder 'cannot read the folder'

mkdir "$root/empty"
expect empty 'no case folders'

mkdir -p "$root/stray/not_a_case"
cp -r "$cases/fat5-tokcls" "$root/stray/fat5-tokcls"
expect stray 'FAIL not_a_case: .*golden.safetensors'

copy no_model fat5-tokcls
rm "$root/no_model/fat5-tokcls/model.safetensors"
expect no_model 'FAIL fat5-tokcls: .*model.safetensors'

copy no_kind fat5-tokcls
echo '{}' > "$root/no_kind/fat5-tokcls/golden.json"
expect no_kind 'FAIL fat5-tokcls: .*golden.json.*kind'

copy wrong_kind fat5-tokcls
echo '{"kind": "qa"}' > "$root/wrong_kind/fat5-tokcls/golden.json"
expect wrong_kind "FAIL fat5-tokcls: .*kind 'qa'"

copy bf16 fat5-rope
echo '{"reference": {"decoder_logits": 0.1}}' > "$root/bf16/fat5-rope/bf16.json"
expect bf16 'FAIL fat5-rope: .*bf16.json.*f32_residual'

copy truncated fat5-tokcls
head -c 1000 "$cases/fat5-tokcls/golden.safetensors" \
  > "$root/truncated/fat5-tokcls/golden.safetensors"
expect truncated 'FAIL fat5-tokcls: .*golden.safetensors'

# A wrong activation function must be detected. Exact GELU in place of its tanh approximation
# changes the logits by 6e-4, other functions by far more. Both exceed the tolerance.
copy activation fat5-tokcls
sed -i 's/"use_gelu_act": true/"use_gelu_act": false/' "$root/activation/fat5-tokcls/config.json"
expect activation 'FAIL fat5-tokcls: logits .*TOO LARGE'

copy decoded t5-v1_0
sed -i 's/"sequences": \[\[0, [0-9]*/"sequences": [[0, 3/' "$root/decoded/t5-v1_0/golden.json"
expect decoded 'FAIL t5-v1_0: .*DECODED ROWS DIFFER'

exit "$failures"
