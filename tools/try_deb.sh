#!/usr/bin/env bash
# Installs the packages of tools/package.sh into a container that runs systemd and the Debian SUITE
# on which the packages were built. There it starts the unit, sends calls, upgrades, stops and
# purges; it fails if a file, user or unit is left. Needs root, podman, runc, mmdebstrap, and .venv/
# for the client. The container shares the network of the host; its image is removed at the end.
# usage: tools/try_deb.sh SUITE          for example: tools/try_deb.sh bookworm
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${1:?usage: tools/try_deb.sh SUITE}

name=quintet-try-deb-$$
image=localhost/$name
# These options let podman run on a host without systemd. `podman run` below sets --ulimit, because
# root may be unable to raise limits on this host. It adds SYS_PTRACE, because the unit needs that
# capability for PrivateUsers=yes together with ProtectProc=invisible (without a container, too).
podman=(podman --cgroup-manager cgroupfs --runtime runc)
clean_up() {
  "${podman[@]}" rm --force --time 5 "$name" >/dev/null 2>&1 || true
  "${podman[@]}" rmi "$image" >/dev/null 2>&1 || true
}
trap clean_up EXIT

say() { echo "try_deb: $*"; }
fail() {
  echo "try_deb: FAILED: $*" >&2
  inside journalctl --no-pager --unit quintet.service --lines 30 >&2 2>/dev/null || true
  exit 1
}
inside() { "${podman[@]}" exec "$name" "$@"; }
root_shell() { inside bash -euo pipefail -c "$1"; }
property() { inside systemctl show --property "$1" --value quintet.service; }
client() { .venv/bin/python tools/client.py "$1" --target "127.0.0.1:$grpc_port" "${@:2}"; }

debs=(build/quintet_*.deb build/quintet-model-g2p_*.deb)
for deb in "${debs[@]}"; do
  [ -f "$deb" ] || fail "no $deb: run tools/package.sh"
done

say "making a base of $suite"
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus "$suite" |
  "${podman[@]}" import --quiet - "$image" >/dev/null
"${podman[@]}" run --detach --name "$name" --systemd=always --network host \
  --cap-add SYS_ADMIN,SYS_PTRACE --security-opt seccomp=unconfined \
  --ulimit nofile=16384:16384 --ulimit nproc=4096:4096 \
  --volume "$PWD/build:/packages:ro" "$image" /sbin/init >/dev/null
for _ in {1..100}; do  # its bus is not there at once
  state=$(inside systemctl is-system-running --wait 2>/dev/null || true)
  [ -z "$state" ] || break
  sleep 0.2
done
[[ $state =~ ^(running|degraded)$ ]] || fail "systemd did not start: $state"

export_apt='export DEBIAN_FRONTEND=noninteractive APT_LISTCHANGES_FRONTEND=none;'
depends=$(dpkg-deb --field "${debs[0]}" Depends)
root_shell "$export_apt apt-get -qq update
  apt-get -qq satisfy --no-install-recommends '$depends' >/dev/null"
# Prints the state that installation and removal must restore: the names of all files outside the
# journals of dpkg, apt and systemd, checksums of the files in /etc, the users and groups, and the
# units.
snapshot() {
  root_shell "find / /run -xdev \\( -path /packages -o -path /proc -o -path /sys -o -path /dev \\
      -o -path /tmp -o -path /run/systemd -o -path /run/udev -o -path /run/log -o -path /var/log \\
      -o -path '/var/lib/dpkg/*-old' -o -path /var/cache/ldconfig \\) -prune -o -print
    find /etc -type f -exec sha256sum {} +
    getent passwd; getent group
    systemctl list-unit-files --no-legend; systemctl list-units --all --no-legend --plain |
      grep quintet || true" | sort
}
before=$(snapshot)

say "installing: ${debs[*]}"
root_shell "$export_apt apt-get -qq install --no-install-recommends \\
  /packages/quintet_*.deb /packages/quintet-model-g2p_*.deb >/dev/null"
[ "$(property ActiveState)" = inactive ] || fail "the unit was started by the installation"
[ "$(property UnitFileState)" = disabled ] || fail "the unit was enabled by the installation"
inside quintet --version
phonemes=$(root_shell 'echo phoneme | quintet generate --model /usr/share/quintet/models/g2p')
[ "$phonemes" = 'F OW1 N IY0 M' ] || fail "generate: $phonemes"

# Change the configuration as an administrator would: use ports that are free on this host.
read -r grpc_port http_port < <(.venv/bin/python -c '
import socket
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(port.getsockname()[1] for port in ports))')
inside sed -i "s/:50051/:$grpc_port/; s/:9464/:$http_port/" /etc/quintet/serve.toml

wait_until_served() {
  for _ in {1..100}; do
    client health >/dev/null 2>&1 && return
    sleep 0.2
  done
  fail "the unit does not serve: $(property ActiveState)"
}
serves() {
  wait_until_served
  phonemes=$(client generate phoneme)
  [ "$phonemes" = 'F OW1 N IY0 M' ] || fail "the server answers: $phonemes"
  local uid
  uid=$(property UID)  # systemd takes dynamic users from this range
  ((61184 <= uid && uid <= 65519)) || fail "runs as user $uid"
}

say 'enable and start'
inside systemctl enable --quiet --now quintet.service
serves
if inside journalctl --unit quintet.service | grep 'memory plan.* of no limit'; then
  fail 'the memory plan ignores the size of the memory'
fi
say 'reload'
inside systemctl reload quintet.service
serves
say 'upgrade to the same version: the server is restarted, the configuration is kept'
pid=$(property MainPID)
root_shell "$export_apt dpkg --install /packages/quintet_*.deb >/dev/null"
[ "$(property MainPID)" != "$pid" ] || fail 'the upgrade did not restart the server'
serves
say 'stop'
inside systemctl stop quintet.service
[ "$(property Result) $(property ExecMainStatus)" = 'success 0' ] ||
  fail "stopped with $(property Result) $(property ExecMainStatus)"
say 'start again and purge'
inside systemctl start quintet.service
serves
root_shell "$export_apt apt-get -qq purge quintet quintet-model-g2p >/dev/null"
if root_shell 'ls -l /proc/[0-9]*/exe 2>/dev/null' | grep quintet; then
  fail 'the server runs on'
fi
after=$(snapshot)
left=$(diff <(echo "$before") <(echo "$after") || true)
[ -z "$left" ] || fail "left behind:
$left"
say "installed, served, upgraded, stopped and purged on $suite: nothing is left"
