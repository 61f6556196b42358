#!/usr/bin/env bash
# Tests the page of the HTTP API in a headless Chromium. Needs the binary (tools/build.sh), the
# packages of tools/setup.sh, and Debian's chromium and chromium-driver.
#
#   tools/try_page.sh                      # about a minute
#   tools/try_page.sh --screenshots DIR    # also writes pictures of every panel, to look at
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for package in chromium chromium-driver; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
    missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "try_page: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
exec .venv/bin/python tests/python/full/page_browser.py "$@"
