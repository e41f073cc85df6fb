"""Job scripts of examples/slurm, with a stand-in for ``srun`` and ``scontrol`` on this machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from huefield import load
from tests.paths import ROOT
from tests.training.helpers import write_waters
from tests.training.jobs import num_lines, until, write_config

SCRIPTS = ROOT / "examples" / "slurm"
SRUN = """#!/bin/bash
# Starts the command SLURM_NTASKS times, as one node of Slurm does, and returns the largest exit code.
trap 'kill -TERM "${children[@]}"' TERM
for ((task = 0; task < ${SLURM_NTASKS:-1}; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_NODES=1 "$@" & children+=($!)
done
largest=0
for child in "${children[@]}"; do
    wait "$child"; code=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done  # a trapped signal ends wait
    ((code > largest)) && largest=$code
done
exit $largest
"""


class Cluster:
    """Commands ``srun``, ``scontrol`` and ``huefield`` in a folder of their own, and jobs that find them there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools, self.requeued = folder, folder / "bin", folder / "requeued"
        self.tools.mkdir()
        self.put("srun", SRUN)
        self.put("scontrol", f'#!/bin/bash\necho "$@" >> {self.requeued}\n')
        self.put("huefield", f'#!/bin/bash\nexec {sys.executable} -m huefield "$@"\n')

    def put(self, name: str, text: str) -> None:
        """A command that jobs find."""
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def start(self, script: str, *arguments: str | Path, **variables: str) -> subprocess.Popen[bytes]:
        """A job, running in a session of its own."""
        path = {"PATH": f"{self.tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "7"}
        with (self.folder / "job.log").open("ab") as log:
            return subprocess.Popen(
                ["/bin/bash", SCRIPTS / script, *map(str, arguments)],
                env={**os.environ, **path, **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, script: str, *arguments: str | Path, **variables: str) -> int:
        """Exit code of a job."""
        return self.start(script, *arguments, **variables).wait(600)

    @property
    def said(self) -> str:
        return (self.folder / "job.log").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash_and_say_how_to_submit_them(script: Path) -> None:
    text = script.read_text()
    assert subprocess.run(["/bin/bash", "-n", script]).returncode == 0
    assert f"sbatch {script.name} " in text or "--parsable members.sh" in text
    if "huefield train" in text:
        assert all(part in text for part in ("--signal=TERM@", "--requeue", 'scontrol requeue "$SLURM_JOB_ID"'))


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (130, True), (143, True)])
def test_only_interrupted_jobs_go_back_into_the_queue(cluster: Cluster, code: int, requeued: bool) -> None:
    for script in ("one-gpu.sh", "one-node.sh", "members.sh", "many-hosts.sh"):
        cluster.requeued.unlink(missing_ok=True)
        cluster.put("huefield", f"#!/bin/bash\nexit {code}\n")
        assert cluster.run(script, "mine.yaml", "run", SLURM_ARRAY_TASK_ID="0") == code
        assert cluster.requeued.exists() == requeued, script


@pytest.mark.slow
def test_members_of_an_array_become_an_ensemble_also_after_an_interruption(cluster: Cluster) -> None:
    data = write_waters(cluster.folder / "waters.xyz", 40)
    config = write_config(cluster.folder / "mine.yaml", data, 150, report_every=1, checkpoint_every=50)
    run = cluster.folder / "run"
    job = cluster.start("members.sh", config, run, SLURM_ARRAY_TASK_ID="0")
    until(lambda: num_lines(run / "member-0") >= 20 or job.poll() is not None, 600)
    srun = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0]
    os.kill(int(srun), signal.SIGTERM)  # as Slurm does: the job script itself gets no signal
    assert job.wait(600) == 130, cluster.said
    assert cluster.requeued.read_text() == "requeue 7\n"
    for member in ("0", "1"):
        assert cluster.run("members.sh", config, run, SLURM_ARRAY_TASK_ID=member) == 0, cluster.said
    assert "resuming at step" in cluster.said
    cluster.run("assemble.sh", run)
    assert load(run / "model.safetensors").num_members == 2


@pytest.mark.slow
def test_processes_of_many_hosts_find_each_other_as_under_slurm(cluster: Cluster) -> None:
    data = write_waters(cluster.folder / "waters.xyz")
    config = write_config(cluster.folder / "mine.yaml", data, 10, report_every=1, checkpoint_every=5)
    job = str(os.getpid())  # decides about the port
    assert cluster.run("many-hosts.sh", config, cluster.folder / "run", SLURM_NTASKS="2", SLURM_JOB_ID=job) == 0, (
        cluster.said
    )
    assert "Process 1 of 2" in cluster.said
    assert load(cluster.folder / "run" / "model.safetensors").num_members == 2
