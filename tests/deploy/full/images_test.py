"""Tests of the container image $QUINTET_IMAGE, which includes the demonstration model, with podman.

tools/try_images.sh builds the image and runs this file. Containers use the network of the host,
because podman cannot create another network on every host.
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import threading

import yaml

from deploy_files import DEPLOY, documents, rendered
from rpc_client import RpcClient
from server_process import eventually, free_port

sys.path.insert(0, str(DEPLOY.parent / "tools" / "reliability"))
from serving import http_get  # noqa: E402

IMAGE = os.environ.get("QUINTET_IMAGE", "")
USER = 10001
MODEL = "g2p=/models/g2p"
CONFINED = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
NAME = f"quintet-test-{os.getpid()}"


def podman(*arguments, stdin: str = "", code: int = 0) -> str:
    """Runs podman, which must exit with `code`, and returns its output."""
    done = subprocess.run(
        ["podman", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"{arguments}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout or done.stderr


def inspected(container: str, field: str) -> str:
    return podman("inspect", "--format", "{{" + field + "}}", container).strip()


class Ports:
    def __init__(self):
        self.grpc, self.http = free_port(), free_port()
        self.listen, self.http_listen = f"0.0.0.0:{self.grpc}", f"0.0.0.0:{self.http}"
        self.variables = ["--env", f"QUINTET_LISTEN={self.listen}"]
        self.variables += ["--env", f"QUINTET_HTTP_LISTEN={self.http_listen}"]

    def status(self, path: str) -> int:
        return http_get(self.http, path, 2)[0]

    def client(self) -> RpcClient:
        return RpcClient(f"127.0.0.1:{self.grpc}", timeout_s=60.0)


@contextlib.contextmanager
def running(ports: Ports, *arguments):
    """Starts a container with `podman run` and waits until the server is ready."""
    try:
        podman("run", "--detach", "--name", NAME, *ports.variables, *arguments)
        assert eventually(lambda: ports.status("/readyz") == 200, 60), podman("logs", NAME)
        yield NAME
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", NAME)


def check_confinement(container: str) -> None:
    process = pathlib.Path("/proc") / inspected(container, ".State.Pid")
    fields = dict(re.findall(r"(?m)^(\w+):\t(.*)$", (process / "status").read_text()))
    print("Uid", fields["Uid"], "CapEff", fields["CapEff"], "NoNewPrivs", fields["NoNewPrivs"])
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {str(USER)}
    assert int(fields["CapEff"], 16) == 0 and fields["NoNewPrivs"] == "1"
    root = re.search(r"(?m)^\S+ / \S+ (\S+)", (process / "mounts").read_text()).group(1)
    print("root", root.split(",")[0])
    assert "ro" in root.split(",")


def check_service(ports: Ports) -> None:
    assert [ports.status("/healthz"), ports.status("/readyz")] == [200, 200]
    with ports.client() as client:
        assert client.generate("phoneme").sequences[0].text == "F OW1 N IY0 M"


def print_end(container: str) -> None:
    """Prints the container's exit code, which must be 0, and the last line of its log."""
    code = inspected(container, ".State.ExitCode")
    print("exit code", code, "after:", podman("logs", container).splitlines()[-1])
    assert code == "0"


@contextlib.contextmanager
def draining(ports: Ports, stop):
    """Context manager whose body runs while the server in the container drains.

    Calls `stop` in a thread. `stop` must stop the container and return when the container has
    ended.
    """
    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        assert eventually(lambda: ports.status("/readyz") == 503, 20)
        assert ports.status("/healthz") == 200
        # A draining server still serves calls, because load balancers send them until they have
        # polled /readyz.
        with ports.client() as client:
            assert client.generate("phoneme").sequences
        yield
    finally:
        stopping.join(60)
    assert not stopping.is_alive()


def test_the_image_is_small_and_has_no_shell():
    size = int(inspected(IMAGE, ".Size"))
    mounted = pathlib.Path(podman("image", "mount", IMAGE).strip())
    try:
        model = sum(f.stat().st_size for f in (mounted / "models").rglob("*") if f.is_file())
        programs = sorted(
            str(path.relative_to(mounted))
            for path in mounted.rglob("*")
            if path.is_file()
            and not path.is_symlink()
            and os.access(path, os.X_OK)
            and path.stat().st_mode & 0o111
            and ".so" not in path.name
        )
        packages = sorted(path.name for path in (mounted / "var/lib/dpkg/status.d").iterdir())
        unlicensed = [name for name in packages if not (mounted / "usr/share/doc" / name).exists()]
    finally:
        podman("image", "unmount", IMAGE)
    print(f"image {size / 1e6:.1f} MB, of which the model {model / 1e6:.1f} MB")
    print("programs:", *programs)
    print("packages:", *packages)
    assert size <= 150e6
    assert programs == ["usr/local/bin/quintet"]
    assert {"libc6", "libstdc++6"} <= set(packages)
    assert not unlicensed
    podman("run", "--rm", "--entrypoint", "/bin/sh", IMAGE, "-c", "true", code=127)


def test_generate():
    arguments = ["generate", "--model", "/models/g2p", "--num-beams", "4"]
    printed = podman("run", "--rm", "--interactive", *CONFINED, IMAGE, *arguments, stdin="phoneme")
    print("phoneme:", printed.strip())
    assert printed == "F OW1 N IY0 M\n"


def test_version_names_the_commit():
    printed = podman("run", "--rm", IMAGE, "--version")
    print(printed.strip())
    assert os.environ["QUINTET_COMMIT"] in printed


def test_health_without_a_server():
    message = podman("run", "--rm", *Ports().variables, IMAGE, "health", code=1)
    print(message.strip())
    assert "/readyz: connect: Connection refused" in message


def test_serve_and_drain():
    ports = Ports()
    serve = ["serve", "--model", MODEL, "--allow-plaintext", "--threads", "1"]
    with running(ports, *CONFINED, IMAGE, *serve) as container:
        check_confinement(container)
        check_service(ports)
        podman("healthcheck", "run", container)
        podman("kill", "--signal", "TERM", container)
        with draining(ports, lambda: podman("wait", container)):
            podman("healthcheck", "run", container, code=1)
        print_end(container)


def test_compose_service():
    """Runs the service of docker-compose.yaml as compose does."""
    (compose,) = documents("docker-compose.yaml")
    service = compose["services"]["quintet"]
    options = ["--read-only"] if service["read_only"] else []
    for volume in service["volumes"]:
        source, target, mode = volume.split(":")
        options += ["--volume", f"{(DEPLOY / source).resolve()}:{target}:{mode}"]
    for capability in service["cap_drop"]:
        options += ["--cap-drop", capability]
    for option in service["security_opt"]:
        options += ["--security-opt", option.removesuffix(":true")]
    seconds = service["stop_grace_period"].removesuffix("s")
    ports = Ports()
    with running(ports, *options, IMAGE, *service["command"]) as container:
        check_confinement(container)
        check_service(ports)
        podman("stop", "--time", seconds, container)
        print_end(container)


def pod_manifest(ports: Ports) -> dict:
    """Returns the Deployment of the CPU overlay, changed so that `podman kube play` can run it."""
    (deployment,) = [
        document
        for document in rendered("kubernetes/overlays/cpu")
        if document["kind"] == "Deployment"
    ]
    deployment["metadata"]["name"] = NAME
    deployment["spec"]["replicas"] = 1
    spec = deployment["spec"]["template"]["spec"]
    spec["hostNetwork"] = True
    spec["volumes"][0]["persistentVolumeClaim"]["claimName"] = NAME  # a volume of podman
    (container,) = spec["containers"]
    container["image"], container["imagePullPolicy"] = IMAGE, "Never"
    listen = {"--listen": ports.listen, "--http-listen": ports.http_listen}
    container["args"] = [
        f"{flag}={listen.get(flag, value)}" if value else flag
        for flag, _, value in (argument.partition("=") for argument in container["args"])
    ]
    # `quintet health` reads the address from the environment.
    container["env"].append({"name": "QUINTET_HTTP_LISTEN", "value": ports.http_listen})
    del container["ports"]  # of a network of its own
    # The probes are removed: podman runs them as shell commands, and the image has no shell.
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        del container[probe]
    return deployment


def test_kubernetes_deployment(tmp_path):
    """Runs the Deployment, checks the URLs that the kubelet would probe, and deletes the pod."""
    (base,) = documents("kubernetes/base/deployment.yaml")
    (declared,) = base["spec"]["template"]["spec"]["containers"]
    ports = Ports()
    manifest = tmp_path / "deployment.yaml"
    manifest.write_text(yaml.safe_dump(pod_manifest(ports)))
    podman("volume", "create", NAME)  # its first user fills it with the model of the image
    try:
        podman("kube", "play", manifest)
        containers = podman("ps", "--format", "{{.Names}} {{.Image}}").splitlines()
        (container,) = [
            name for name, image in map(str.split, containers) if NAME in name and image == IMAGE
        ]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = declared[probe]["httpGet"]["path"]
            assert eventually(lambda: ports.status(path) == 200, 60), podman("logs", container)
            print(probe, path, 200)
        check_confinement(container)
        check_service(ports)
        for arguments in (["health"], ["health", "--live"]):
            print(*arguments, podman("exec", container, "/usr/local/bin/quintet", *arguments))
        print("memory limit", inspected(container, ".HostConfig.Memory"))
        pod = inspected(container, ".Pod")
        grace = str(base["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
        with draining(ports, lambda: podman("pod", "stop", "--time", grace, pod)):
            pass
        print_end(container)
        podman("kube", "down", manifest)
    finally:
        podman("pod", "rm", "--force", "--ignore", "--time", "0", f"{NAME}-pod-0")
        podman("volume", "rm", "--force", NAME)
