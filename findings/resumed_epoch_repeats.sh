#!/usr/bin/env bash
# A Lightning run resumed in the middle of an epoch hears the first batches twice and the last ones not at all.
#
# One would guess: the batches that the checkpoint has seen are skipped (the progress says "3 of 8 done"), or the epoch begins anew.
# What happens: the count goes on at batch 3 while the data begins at batch 0. An epoch of eight batches, resumed after three: batches
#   0 to 4 under the numbers 3 to 7. Batches 5 to 7 are left out of this epoch. Only a warning of
#   "unreliable results" hints at it; it does not say which data is left out.
# Who meets it: jobs that are cut off and resumed (SLURM, spot machines) with every_n_train_steps and few, long epochs. With a limit of
#   one epoch a part of the data is never trained on. A loader with state_dict and load_state_dict is asked for its place.
# Versions: lightning 2.6.6, torch 2.13.0; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 lightning==2.6.6 numpy==2.4.6 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON'
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, number):
        self.seen.append((self.current_epoch, number, int(batch.item())))
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def run(checkpoint=None, **more):
    model, data = Model(), torch.utils.data.DataLoader(torch.arange(8.0)[:, None])
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(max_epochs=2, **quiet, **more).fit(model, data, ckpt_path=checkpoint)
    return model.seen


whole = run(callbacks=[ModelCheckpoint(".", every_n_train_steps=3, save_top_k=-1, filename="{step}")])
resumed = run("step=3.ckpt", enable_checkpointing=False)
print("lightning", lightning.__version__, "torch", torch.__version__)
first = [(number, data) for epoch, number, data in resumed if epoch == 0]
print("without a break, first epoch, (number, data):", *[(number, data) for epoch, number, data in whole if epoch == 0])
print("resumed after three of eight batches:        ", *first)
assert first == [(3, 0), (4, 1), (5, 2), (6, 3), (7, 4)], "it resumes otherwise now"
assert resumed[5:] == whole[8:]
print("as found")
PYTHON
grep -o -i "this can cause unreliable results" "$folder/log"
