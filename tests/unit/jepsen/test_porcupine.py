"""The search for an order against Go's porcupine, where Go and the module are to be had."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from checkers.linearizable import Access, is_linearizable

MODULE = "github.com/anishathalye/porcupine@v1.0.0"
HISTORIES = 300
BUILD_SECONDS_MAX = 240

PROGRAM = """
package main

import (
	"encoding/json"
	"os"

	"github.com/anishathalye/porcupine"
)

type access struct {
	Client, Began, Ended, Value int
	Write                       bool
}

func main() {
	var histories [][]access
	if err := json.NewDecoder(os.Stdin).Decode(&histories); err != nil {
		panic(err)
	}
	model := porcupine.Model{
		Init: func() interface{} { return 0 },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			in := input.(access)
			if in.Write {
				return true, in.Value
			}
			return in.Value == state.(int), state
		},
	}
	verdicts := []bool{}
	for _, history := range histories {
		var operations []porcupine.Operation
		for _, each := range history {
			operations = append(operations, porcupine.Operation{
				ClientId: each.Client, Input: each, Call: int64(each.Began), Return: int64(each.Ended),
			})
		}
		verdicts = append(verdicts, porcupine.CheckOperations(model, operations))
	}
	json.NewEncoder(os.Stdout).Encode(verdicts)
}
"""


def random_history(rng: random.Random) -> list[Access]:
    """Of a register that works: each access takes effect at some time between its ends. Then one may be spoilt."""
    moments = sorted((rng.uniform(0, 100), rng.random() < 0.4) for _ in range(rng.randint(1, 40)))
    value, accesses = 0, []
    for number, (at, is_write) in enumerate(moments, 1):
        value = number if is_write else value
        is_unknown = is_write and rng.random() < 0.1
        ended = None if is_unknown else int(1000 * (at + rng.expovariate(0.2)))
        accesses.append(Access(int(1000 * (at - rng.expovariate(0.2))), ended, is_write, value))
    if rng.random() < 0.6:
        spoilt = rng.randrange(len(accesses))
        accesses[spoilt] = accesses[spoilt]._replace(value=rng.randint(0, len(accesses)))
    return accesses


@pytest.fixture(scope="module")
def porcupine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("there is no Go")
    directory = tmp_path_factory.mktemp("porcupine")
    (directory / "main.go").write_text(PROGRAM)
    for command in (["mod", "init", "oracle"], ["get", MODULE], ["build", "-o", "oracle", "."]):
        done = subprocess.run(
            ["go", *command], cwd=directory, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
        )
        if done.returncode:
            pytest.skip(f"go {command[0]}: {done.stderr.strip()[-200:]}")
    return directory / "oracle"


@pytest.mark.slow
@pytest.mark.nightly
def test_both_checkers_agree_on_random_histories(porcupine: Path) -> None:
    rng = random.Random(8)
    histories = [random_history(rng) for _ in range(HISTORIES)]
    never = 10**9  # an access that never ends may take effect behind all others, where nobody reads
    asked = [
        [
            {"client": number, "began": a.began, "ended": a.ended or never, "write": a.is_write, "value": a.value}
            for number, a in enumerate(history)
        ]
        for history in histories
    ]
    done = subprocess.run([porcupine], input=json.dumps(asked).encode(), capture_output=True, check=True, timeout=120)
    verdicts = json.loads(done.stdout)
    assert [is_linearizable(history, 0) for history in histories] == verdicts
    assert 0 < sum(verdicts) < HISTORIES
