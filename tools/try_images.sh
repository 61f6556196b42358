#!/usr/bin/env bash
# Builds the container image of deploy/Dockerfile from the last commit and tries it: size, generate,
# serve, health check, user, read-only root, drain, a pod of the Kubernetes Deployment, and servers
# replaced behind HAProxy under load. Prints the results. Needs root, Debian's podman and buildah,
# the packages of tools/setup.sh and build/quintet, but no image registry: mmdebstrap makes the base
# image.
#
#   tools/try_images.sh           # the CPU image, about 15 minutes on 2 cores
#   tools/try_images.sh --cuda    # also builds the CUDA image, with the toolkit of /usr/local/cuda
#
# Removes the images that it made. Keeps the base image's files, build-image/base.tar.
set -euo pipefail
cd "$(dirname "$0")/.."

base=localhost/quintet-test-base:$$
cuda_base=localhost/quintet-test-cuda-base:$$
image=localhost/quintet-test:$$
cuda_image=localhost/quintet-test-cuda:$$
work=$(mktemp -d)

missing=()
for package in podman buildah runc catatonit mmdebstrap haproxy; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
    missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "try_images: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi

# Let containers use the host's network. Set their limits of open files and processes low enough for
# a host that restricts these limits.
cat >"$work/containers.conf" <<'CONF'
[containers]
netns = "host"
default_ulimits = ["nofile=16384:16384", "nproc=4096:4096"]
CONF
export CONTAINERS_CONF=$work/containers.conf

cleanup() {
  # buildah also keeps build stages, which have no name. They are built on our base images and are
  # removed with them.
  podman image rm --force --ignore "$image" "$cuda_image" "$base" "$cuda_base" >/dev/null 2>&1 ||
    true
  rm -rf "$work"
}
trap cleanup EXIT

echo "== base image =="
mkdir -p build-image
[ -e build-image/base.tar ] ||
  mmdebstrap --quiet --variant=minbase --format=tar bookworm build-image/base.tar.new
[ -e build-image/base.tar ] || mv build-image/base.tar.new build-image/base.tar
podman import --quiet build-image/base.tar "$base" >/dev/null

mkdir "$work/context"
git archive HEAD | tar -x -C "$work/context"
QUINTET_COMMIT=$(git rev-parse --short=10 HEAD)
export QUINTET_COMMIT

build() {
  buildah build --isolation chroot --format docker --layers=false --force-rm \
    --build-arg BASE="$base" --build-arg COMMIT="$QUINTET_COMMIT" \
    --build-arg MODEL=deploy/models/g2p --file deploy/Dockerfile "$@" "$work/context"
}

echo "== image =="
build --target runtime --tag "$image"

echo "== tests =="
QUINTET_IMAGE=$image .venv/bin/python -m pytest -q -rP -p no:cacheprovider tests/deploy/full

echo "== servers replaced under load =="
.venv/bin/python tools/reliability/rolling_restart.py --image "$image"

if [ "${1:-}" = --cuda ]; then
  echo "== CUDA image =="
  # Copy the CUDA toolkit, but only the three of its shared libraries that the build and the image
  # need.
  find /usr/local/cuda/ ! -type d \( ! -name 'lib*.so*' -o -name 'libcublasLt.so.*' \
    -o -name 'libcudart.so*' -o -name 'libnvvm.so*' \) -printf 'usr/local/cuda/%P\0' |
    tar -c --null -C / --files-from=- -f "$work/cuda.tar"
  podman import --quiet "$work/cuda.tar" "$cuda_base" >/dev/null
  rm "$work/cuda.tar"
  build --build-arg CUDA_IMAGE="$cuda_base" --target runtime-cuda --tag "$cuda_image"
  podman image inspect --format 'CUDA image: {{.Size}} bytes' "$cuda_image"
  podman run --rm "$cuda_image" --version
  # The CUDA binary must also run on a machine without a GPU, on the CPU.
  podman run --rm --interactive --read-only "$cuda_image" \
    generate --model /models/g2p --device cpu --num-beams 4 <<<phoneme
fi
