"""The manifests for Kubernetes are valid by its schemas, and agree with the service that they start."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from helpers.chat_server import Response, sure
from helpers.gateway_service import make_policy, write_models
from starlette.routing import Route

from rcjax.cli.app import load
from rcjax.serving.gateway.processes import _WORKER_SECONDS

FOLDER = Path(__file__).parents[3] / "rcjax" / "docs" / "deploy" / "kubernetes"
BASE = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text("utf-8"))
OVERLAY = yaml.safe_load((FOLDER / "kustomization.yaml").read_text("utf-8"))
OBJECTS = [one for name in BASE["resources"] for one in yaml.safe_load_all((FOLDER / "base" / name).read_text("utf-8"))]
#: That has sleeps in hooks; the newest one known here has all else.
OLDEST = "1.30"


def named(kind, name="rcjax"):
    (found,) = (one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


DEPLOYMENT = named("Deployment")["spec"]["template"]["spec"]
(CONTAINER,) = DEPLOYMENT["containers"]
TOLD = load("serve").make_context("serve", [*CONTAINER["args"]]).params


def test_every_manifest_belongs_to_the_base():
    files = {path.name for path in (FOLDER / "base").glob("*.yaml")}
    assert files - {"kustomization.yaml"} == {*BASE["resources"]}
    assert OVERLAY["resources"] == ["base"]


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_manifests_are_valid(manifest, version):
    if manifest["apiVersion"].startswith("monitoring.coreos.com/"):  # the operator's own kind
        with pytest.raises(kubernetes_validate.SchemaNotFoundError):
            kubernetes_validate.validate(manifest, version, strict=True)
        return
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_faulty_manifest_is_found():
    (deployment,) = (one for one in OBJECTS if one["kind"] == "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "selektor": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_the_pod_has_the_time_that_the_service_takes_to_end():
    pause = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    spans = 10  # the exporter's own limit
    assert DEPLOYMENT["terminationGracePeriodSeconds"] > pause + 2 * TOLD["drain"] + spans + 5
    ready, live = CONTAINER["readinessProbe"], CONTAINER["livenessProbe"]
    assert pause >= ready["periodSeconds"] + 2  # endpoints are removed meanwhile, as soon as SIGTERM is due
    assert live["periodSeconds"] * live["failureThreshold"] >= _WORKER_SECONDS


def test_probes_and_figures_are_paths_of_the_service(running):
    paths = {route.path for route in running.app.routes if isinstance(route, Route)}
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    (endpoint,) = named("ServiceMonitor")["spec"]["endpoints"]
    assert {probe["path"] for probe in probes} | {endpoint["path"]} <= paths
    (port,), (outer,) = CONTAINER["ports"], named("Service")["spec"]["ports"]
    assert {probe["port"] for probe in probes} | {outer["targetPort"]} == {port["name"]}
    assert endpoint["port"] == outer["name"]
    assert port["containerPort"] == TOLD["port"]


def test_the_command_reads_what_is_mounted():
    (source,) = OVERLAY["configMapGenerator"]
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in DEPLOYMENT["volumes"]}
    (folder,) = (mounts[name] for name, volume in volumes.items() if "configMap" in volume)
    assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} == {source["name"]}
    assert {TOLD["policy"], TOLD["models"]} == {Path(folder) / name for name in source["files"]}
    assert not any("subPath" in mount for mount in CONTAINER["volumeMounts"])
    assert OVERLAY["generatorOptions"]["disableNameSuffixHash"]  # else a change would be another name, and a restart


def test_the_ledger_is_the_store_that_is_deployed():
    store = named("Service", "rcjax-valkey")
    address = urlsplit(TOLD["ledger"])
    assert (address.hostname, address.port) == (store["metadata"]["name"], store["spec"]["ports"][0]["port"])
    assert str(TOLD["log"]) == "-"  # a pod's disk ends with it


def test_keys_come_from_the_secret_alone():
    (secret,) = OVERLAY["secretGenerator"]
    environment = {one["name"]: one for one in CONTAINER["env"]}
    asked = {one["valueFrom"]["secretKeyRef"]["name"] for one in environment.values() if "valueFrom" in one}
    assert asked == {secret["name"]} == {one["secretRef"]["name"] for one in CONTAINER["envFrom"]}
    parts = environment[TOLD["key_env"]]["value"].split(",")
    assert parts == [f"$({name})" for name in environment if name != TOLD["key_env"]]  # which stand before it
    (endpoint,) = named("ServiceMonitor")["spec"]["endpoints"]
    key = endpoint["authorization"]["credentials"]
    assert key["name"] == secret["name"]
    assert f"$({key['key']})" in parts


def test_selectors_find_their_pods():
    for workload, others in (
        ("Deployment", ("Service", "PodDisruptionBudget", "ServiceMonitor")),
        ("StatefulSet", ("Service", "NetworkPolicy")),
    ):
        name = "rcjax" if workload == "Deployment" else "rcjax-valkey"
        labels = named(workload, name)["spec"]["template"]["metadata"]["labels"]
        for kind in others:
            spec = named(kind, name)["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            assert selector.get("matchLabels", selector).items() <= labels.items()
    assert named("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "rcjax"


def test_the_autoscaler_goes_by_a_figure_of_the_service_and_acts_before_requests_are_refused(service):
    (metric,) = named("HorizontalPodAutoscaler")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    seen = []

    def behave(request, headers):
        seen.append(service.get("/metrics").body.decode())
        return Response(sure("B", -0.1))

    service.server.behave = behave
    service.ask()
    seen.append(service.get("/metrics").body.decode())
    assert [re.search(rf"^{name} (.*)$", page, re.MULTILINE)[1] for page in seen] == ["1.0", "0.0"]
    assert int(metric["pods"]["target"]["averageValue"]) <= TOLD["concurrency"] * TOLD["workers"] / 2


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not there")
def test_kustomize_builds_all_manifests(tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    make_policy().save(tmp_path / "policy.json")
    write_models(tmp_path / "models.toml", "http://models")
    (tmp_path / "keys.env").write_text("KEY_OF_THE_TEST=k\nCLIENT_KEYS=a,b\nMETRICS_KEY=c\n")
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [*yaml.safe_load_all(done.stdout)]
    assert len(made) == len(OBJECTS) + 2
    assert {one["metadata"]["namespace"] for one in made} == {OVERLAY["namespace"]}
    (files,) = (one["data"] for one in made if one["kind"] == "ConfigMap")
    assert files["policy.json"] == (tmp_path / "policy.json").read_text()
