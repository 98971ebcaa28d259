"""The trainers of Lightning and Transformers, the real ones."""

import warnings

import pytest
from optional import needed

torch = needed("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of these packages about each other
    lightning = needed("lightning")
    transformers = needed("transformers")
    needed("accelerate")
    from convspectra.torch.lightning import SpectralClipCallback as ForLightning
    from convspectra.torch.transformers import SpectralClipCallback as ForTransformers

from networks import EXAMPLE, small  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 12


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(EXAMPLE[1:], generator=generator)}


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = small()

    def training_step(self, batch, _):
        return -self.net(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = small()

    def forward(self, x):
        return {"loss": -self.net(x).square().mean()}


def lightning_trainer(folder, callback, steps, **kwargs):
    return lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        **kwargs,
    )


def fit(trainer, module, **kwargs):
    data = torch.utils.data.DataLoader(Noise(), batch_size=2)
    trainer.fit(module, data, **kwargs)


def test_lightning_goes_by_the_steps_of_the_optimizer(tmp_path):
    callback = ForLightning({"net.[012]*": 0.5}, 2, method="scale")
    module = Module()
    trainer = lightning_trainer(tmp_path, callback, 3, accumulate_grad_batches=2)
    fit(trainer, module)
    assert (callback.clip.steps, callback.clip.passes) == (3, 1)
    assert max(change.after for change in callback.clip.last.changes) <= 0.5
    assert not any(m._forward_hooks for m in module.modules())


def test_lightning_logs_and_resumes(tmp_path):
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)

    def run(steps, checkpoint=None):
        callback, module = ForLightning(0.5, 4), Module()
        trainer = lightning_trainer(tmp_path, callback, steps)
        trainer.logger = logger
        fit(trainer, module, ckpt_path=checkpoint, weights_only=True)
        return callback, trainer

    first, trainer = run(6)
    trainer.save_checkpoint(tmp_path / "six.ckpt")
    second, _ = run(9, tmp_path / "six.ckpt")
    assert (first.clip.steps, first.clip.passes) == (6, 1)
    assert (second.clip.steps, second.clip.passes) == (9, 2)
    (metrics, *_) = (tmp_path / "lightning_logs").rglob("metrics.csv")
    assert "norm/net.0" in metrics.read_text()


def hugging_face(folder, steps, callback, **kwargs):
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        save_steps=4,
        disable_tqdm=True,
        save_strategy="steps",
        lr_scheduler_type="constant",
        **kwargs,
    )
    return transformers.Trainer(
        Model(), arguments, train_dataset=Noise(), callbacks=[callback]
    )


def test_transformers_goes_by_the_steps_of_the_optimizer(tmp_path):
    callback = ForTransformers({"net.[012]*": 0.5}, 2, method="scale")
    trainer = hugging_face(tmp_path, 3, callback, gradient_accumulation_steps=2)
    trainer.train()
    assert (callback.clip.steps, callback.clip.passes) == (3, 1)
    assert max(change.after for change in callback.clip.last.changes) <= 0.5


def test_transformers_resumes(tmp_path):
    whole = hugging_face(tmp_path / "whole", 6, ForTransformers(0.5, 3))
    whole.train()
    hugging_face(tmp_path / "parts", 4, ForTransformers(0.5, 3)).train()
    callback = ForTransformers(0.5, 3)
    resumed = hugging_face(tmp_path / "parts", 6, callback)
    resumed.train(resume_from_checkpoint=True)
    assert (callback.clip.steps, callback.clip.passes) == (6, 1)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters()):
        assert torch.equal(a, b)
