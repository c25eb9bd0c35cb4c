#!/usr/bin/env python3
"""The files for schedulers, without a scheduler. Arguments: the folder experiments/deploy, psring, the trainer."""
import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import unittest

LAUNCH, PSRING, TRAINER = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)

try:
    import yaml
except ImportError:
    yaml = None

# Prints its arguments, one a line, and what a task would see.
FAKE_SRUN = """#!/bin/bash
printf '%s\\n' "$@"
echo "secret $(stat -c %a "$PSRING_SECRET_FILE") $(cat "$PSRING_SECRET_FILE")"
exit "${FAKE_STATUS:-0}"
"""


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class SlurmScripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        srun = self.path / "srun"
        srun.write_text(FAKE_SRUN)
        srun.chmod(0o755)

    def run_script(self, *arguments, nodes=1, **environment):
        """The lines of the fake srun's output, and the finished process."""
        variables = {"PATH": f"{self.path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(self.path), "SLURM_JOB_ID": "7",
                     "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_GPUS_ON_NODE": "4"}
        done = subprocess.run(["bash", LAUNCH / "slurm-gpu.sbatch", *arguments], env=variables | environment,
                              capture_output=True, text=True)
        return done.stdout.splitlines(), done

    def test_are_valid_bash(self):
        scripts = sorted(LAUNCH.glob("*.sbatch"))
        self.assertIn(LAUNCH / "slurm-gpu.sbatch", scripts)
        for script in scripts:
            self.assertEqual(output_of("bash", "-n", script), "")

    def test_directives_are_options_of_sbatch(self):
        known = {"--job-name", "--nodes", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node", "--exclusive", "--time",
                 "--output"}
        for script in LAUNCH.glob("*.sbatch"):
            options = re.findall(r"^#SBATCH (\S+?)(?:=\S+)?$", script.read_text(), re.MULTILINE)
            self.assertTrue(options)
            self.assertLessEqual(set(options), known)

    def test_one_machine_gets_the_arguments_as_they_are(self):
        lines, done = self.run_script("bench", "--device", "cuda")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(lines[:3], ["--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpu-bind=none"])
        self.assertEqual(lines[3:-1], [f"{self.path}/build/release/bin/psring", "bench", "--device", "cuda"])

    def test_several_machines_get_their_number_and_one_worker_per_gpu(self):
        lines, _ = self.run_script("compare", "--strategies", "nccl", nodes=2)
        self.assertEqual(lines[4:-1], ["compare", "--strategies", "nccl", "--nnodes", "2", "--nproc_per_node", "4"])
        for given in (["--nproc_per_node", "2"], ["--nproc_per_node=2"]):
            lines, _ = self.run_script("train", *given, nodes=2)
            self.assertEqual(lines[4:-1], ["train", *given, "--nnodes", "2"])

    def test_a_container_of_pyxis(self):
        lines, _ = self.run_script("train", PSRING_IMAGE="registry.example#psring:latest", PSRING_BUILD="/opt/psring")
        here = f"{self.path}:{self.path}"
        self.assertEqual(lines[3:-1], ["--container-image=registry.example#psring:latest", f"--container-mounts={here}",
                                       f"--container-workdir={self.path}", "/opt/psring/bin/psring", "train"])

    def test_a_container_of_apptainer(self):
        lines, _ = self.run_script("train", PSRING_IMAGE="/images/psring.sif", PSRING_CONTAINER="apptainer")
        self.assertEqual(lines[3:-1], ["apptainer", "exec", "--nv", "--pwd", str(self.path), "--bind", str(self.path),
                                       "/images/psring.sif", f"{self.path}/build/release/bin/psring", "train"])

    def test_another_container_runtime_is_rejected(self):
        _, done = self.run_script("train", PSRING_IMAGE="x", PSRING_CONTAINER="docker")
        self.assertEqual(done.returncode, 2)
        self.assertIn("PSRING_CONTAINER is 'docker'; use pyxis or apptainer", done.stderr)

    def test_the_job_has_a_secret_of_its_own_until_it_ends(self):
        for status in (0, 3):
            lines, done = self.run_script("train", FAKE_STATUS=str(status))
            self.assertEqual(done.returncode, status)
            self.assertRegex(lines[-1], r"^secret 600 [0-9a-f]{32}$")
            self.assertEqual(list(self.path.glob(".psring-secret*")), [])

    def test_a_given_secret_is_used_and_kept(self):
        elsewhere = self.path / "elsewhere"
        elsewhere.mkdir()
        secret = elsewhere / "secret"
        secret.write_text("0" * 32)
        secret.chmod(0o600)
        lines, _ = self.run_script("train", PSRING_SECRET_FILE=str(secret), PSRING_IMAGE="image")
        self.assertEqual(lines[-1], "secret 600 " + "0" * 32)
        self.assertIn(f"--container-mounts={self.path}:{self.path},{elsewhere}:{elsewhere}", lines)
        self.assertTrue(stat.S_ISREG(secret.stat().st_mode))

    def test_without_a_verb_it_says_what_to_give(self):
        _, done = self.run_script()
        self.assertEqual(done.returncode, 2)
        self.assertIn("give a verb of psring", done.stderr)


class Commands(unittest.TestCase):
    """What the files pass to psring exists."""

    def commands(self):
        """Of all files: the verb and the words after it."""
        for file in sorted(path for path in LAUNCH.iterdir() if path.is_file()):
            text = file.read_text()
            if file.suffix == ".sbatch":
                for line in re.findall(r"^#   sbatch .*?slurm-gpu\.sbatch (.*)$", text, re.MULTILINE):
                    yield file, line.split()[0], line.split()[1:]
            if file.suffix == ".yaml":
                words = re.findall(r"^\s+- (-*[a-z_]\S*)(?:\s+#.*)?$", text, re.MULTILINE)
                starts = [i for i, word in enumerate(words) if word in ("train", "compare", "bench")]
                self.assertEqual(len(starts), 1, file)
                yield file, words[starts[0]], words[starts[0] + 1:]

    def test_flags_and_strategies_exist(self):
        described = json.loads(output_of(TRAINER, "--describe"))
        strategies = {row["name"] for row in described["strategies"]}
        checked = 0
        for file, verb, words in self.commands():
            flags = set(re.findall(r"--[a-z_]+", output_of(PSRING, verb, "--help-all")))
            for i, word in enumerate(words):
                if not word.startswith("--"):
                    continue
                flag, _, value = word.partition("=")
                self.assertIn(flag, flags, file)
                checked += 1
                value = value or (words[i + 1] if i + 1 < len(words) else "")
                if flag in ("--strategy", "--strategies"):
                    self.assertLessEqual(set(value.split(",")), strategies, file)
        self.assertGreater(checked, 15)

    def test_the_scripts_own_flags_exist(self):
        script = (LAUNCH / "slurm-gpu.sbatch").read_text()
        for flag in ("--nnodes", "--nproc_per_node"):
            self.assertIn(flag, script)
            for verb in ("compare", "train", "bench"):
                self.assertIn(flag, output_of(PSRING, verb, "--help-all"))


@unittest.skipIf(yaml is None, "python3-yaml is not installed")
class Manifests(unittest.TestCase):
    def documents(self, name):
        return list(yaml.safe_load_all((LAUNCH / name).read_text()))

    def check_pod(self, pod, container, gpus):
        """A pod in which psring trains on GPUs."""
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        self.assertEqual(set(mounts.values()), set(volumes))
        shared = volumes[mounts["/dev/shm"]]["emptyDir"]
        self.assertEqual(shared["medium"], "Memory")
        self.assertRegex(shared["sizeLimit"], r"^\d+Gi$")
        secret = volumes[mounts["/run/psring"]]["secret"]
        self.assertEqual((secret["secretName"], secret["defaultMode"]), ("psring", 0o400))
        self.assertEqual(volumes[mounts["/psring/runs"]]["persistentVolumeClaim"]["claimName"], "psring-runs")
        self.assertEqual(container["workingDir"], "/psring")
        limits = container["resources"]["limits"]
        self.assertEqual(limits["nvidia.com/gpu"], gpus)
        self.assertLess(int(shared["sizeLimit"][:-2]), int(limits["memory"][:-2]), "it counts towards the memory")
        required = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        self.assertEqual(required[0]["topologyKey"], "kubernetes.io/hostname")

    def flag(self, arguments, name):
        return next(word.partition("=")[2] for word in arguments if word.startswith(f"--{name}="))

    def check_indexed_job(self, job, gpus, first):
        self.assertEqual(job["completionMode"], "Indexed")
        pod = job["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")
        container = pod["containers"][0]
        arguments = container["args"]
        self.assertEqual(job["completions"], job["parallelism"])
        self.assertEqual(self.flag(arguments, "nnodes"), str(job["completions"]))
        self.assertEqual(self.flag(arguments, "nproc_per_node"), str(gpus))
        self.assertEqual(self.flag(arguments, "master_addr"), first)
        self.assertIn({"name": "PSRING_SECRET_FILE", "value": "/run/psring/secret"}, container["env"])
        self.check_pod(pod, container, gpus)

    def test_every_file_is_yaml_with_kinds_and_names(self):
        files = sorted(path.name for path in LAUNCH.glob("*.yaml"))
        self.assertEqual(files, ["kubernetes-gpu.yaml", "kubernetes-jobset.yaml", "kubernetes-mpijob.yaml", "kubernetes.yaml"])
        for name in files:
            for document in self.documents(name):
                self.assertLessEqual({"apiVersion", "kind", "metadata", "spec"}, set(document), name)
                self.assertTrue(document["metadata"]["name"])

    def test_the_indexed_job(self):
        claim, service, job = self.documents("kubernetes-gpu.yaml")
        self.assertEqual((claim["kind"], claim["metadata"]["name"]), ("PersistentVolumeClaim", "psring-runs"))
        self.assertEqual((job["apiVersion"], job["kind"]), ("batch/v1", "Job"))
        name, subdomain = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
        self.assertEqual(service["metadata"]["name"], subdomain)
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(service["spec"]["selector"], {"job-name": name})
        self.check_indexed_job(job["spec"], 8, f"{name}-0.{subdomain}")

    def test_the_jobset(self):
        (jobset,) = self.documents("kubernetes-jobset.yaml")
        self.assertEqual((jobset["apiVersion"], jobset["kind"]), ("jobset.x-k8s.io/v1alpha2", "JobSet"))
        network = jobset["spec"]["network"]
        self.assertTrue(network["enableDNSHostnames"] and network["publishNotReadyAddresses"])
        (group,) = jobset["spec"]["replicatedJobs"]
        self.assertEqual(group["replicas"], 1, "psring's node rank is the index in one job")
        first = f"{jobset['metadata']['name']}-{group['name']}-0-0.{network['subdomain']}"
        self.check_indexed_job(group["template"]["spec"], 8, first)

    def test_the_mpijob(self):
        (job,) = self.documents("kubernetes-mpijob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        self.assertEqual(job["spec"]["slotsPerWorker"], 1)
        worker = job["spec"]["mpiReplicaSpecs"]["Worker"]
        launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        arguments = launcher["args"]
        name = job["metadata"]["name"]
        self.assertEqual(self.flag(arguments, "nnodes"), str(worker["replicas"]))
        self.assertEqual(self.flag(arguments, "nproc_per_node"), "8")
        self.assertEqual(self.flag(arguments, "master_addr"), f"{name}-worker-0.{name}")
        self.assertIn("PSRING_SECRET_FILE=/run/psring/secret", arguments)
        pod = worker["template"]["spec"]
        self.check_pod(pod, pod["containers"][0], 8)


if __name__ == "__main__":
    unittest.main()
