"""heddle as a model of lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness).

    python examples/lm_eval/heddle_lm.py --model heddle --model_args job=job.yaml --tasks lambada_openai

takes lm_eval's own arguments. model_args: job, and optionally heddle (the command), tokenizer, checkpoint, weights,
max_new (tokens that generate_until makes at most), and overrides, words separated by blanks: overrides="mesh.tp=2 data.seq_len=512".
Each batch of requests is one run of `heddle eval --requests`, or of `heddle sample`."""
import json
import os
import subprocess
import sys
import tempfile

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model


@register_model("heddle")
class HeddleLM(LM):
    def __init__(self, job, heddle="heddle", tokenizer=None, checkpoint=None, weights=None, overrides="", max_new=256, **_):
        super().__init__()
        self.job, self.heddle, self.max_new = job, heddle, int(max_new)
        self.words = overrides.split()
        for flag, value in (("--tokenizer", tokenizer), ("--checkpoint", checkpoint), ("--weights", weights)):
            self.words += [flag, value] if value else []

    def _run(self, verb, lines, words):
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = os.path.join(folder, "requests.jsonl"), os.path.join(folder, "answers.jsonl")
            with open(asked, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            files = ["--requests", asked, "--to", answered] if verb == "eval" else ["--prompt-file", asked, "--json"]
            done = subprocess.run([self.heddle, verb, self.job, *self.words, *files, *words], stdout=subprocess.PIPE)
            if done.returncode:
                raise RuntimeError(f"heddle {verb} ended with exit code {done.returncode}; it says why above")
            if verb == "sample":
                return [json.loads(line) for line in done.stdout.decode().splitlines()]
            with open(answered, encoding="utf-8") as file:
                answers = [json.loads(line) for line in file]
            for a in answers:
                a["logprob"] = float("nan") if a["logprob"] is None else a["logprob"]  # not finite
            return answers

    def loglikelihood(self, requests):
        lines = [{"context": context, "continuation": continuation} for context, continuation in (r.args for r in requests)]
        return [(a["logprob"], a["is_greedy"]) for a in self._run("eval", lines, [])] if lines else []

    def loglikelihood_rolling(self, requests):
        lines = [{"text": r.args[0]} for r in requests]
        return [a["logprob"] for a in self._run("eval", lines, [])] if lines else []

    def generate_until(self, requests):
        answers = [None] * len(requests)
        groups = {}  # one run for all requests that want the same
        for i, r in enumerate(requests):
            groups.setdefault(json.dumps(r.args[1], sort_keys=True, default=str), []).append(i)
        for want, members in groups.items():
            want = json.loads(want)
            until = want.get("until") or []
            words = ["--max-new", str(want.get("max_gen_toks", self.max_new)),
                     "--temperature", str(want.get("temperature", 0) if want.get("do_sample") else 0),
                     "--top-p", str(want.get("top_p", 1))]
            for stop in [until] if isinstance(until, str) else until:
                words += ["--stop", stop]
            lines = [{"prompt": requests[i].args[0]} for i in members]
            for i, answer in zip(members, self._run("sample", lines, words)):
                answers[i] = answer["text"]
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())
