#!/usr/bin/env bash
# Tests quintet.ray with Ray on a cluster of several nodes that run on this machine, and the example
# for Apache Spark. Both have a virtual environment of their own (build/ray), as they may need other
# releases of protobuf and NumPy than the other tests. Needs the build (tools/build.sh); Spark needs
# Java 17. Takes about half an hour on 2 cores. /dev/shm needs 1 GiB.
# usage: tools/try_ray.sh [PYTEST ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

# The extension in build/python fits the Python of the build.
environment=build/ray
if [ ! -x "$environment/bin/ray-installed" ]; then
  "$(readlink -f .venv/bin/python)" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check \
    'ray[data,serve]==2.60.0' 'pandas<3' pyarrow==26.0.1 pyspark==4.3.0 PyYAML==6.0.3 \
    prometheus_client==0.26.0 pytest==9.2.0 >&2
  cp /bin/true "$environment/bin/ray-installed"  # last: an incomplete installation is repeated
fi
if ! command -v java >/dev/null; then
  echo "try_ray: apt-get install --no-install-recommends openjdk-17-jre-headless" >&2
  exit 1
fi
for file in ray_data ray_serve spark_rows; do
  "$environment/bin/python" -m pytest -q -p no:cacheprovider "tests/python/full/$file.py" "$@"
done
