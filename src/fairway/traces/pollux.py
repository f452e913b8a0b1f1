"""The workloads of the Pollux and Sia artifacts: `name,time,application,num_replicas,batch_size`.

The file names an application and no amount of work: each run goes through its data set a fixed number of times.
`APPLICATIONS` holds those numbers, and the most samples that a GPU takes at once (for ResNet-50 half of the artifact's
figure, which would not fit the 16 GiB of its GPUs without mixed precision). A run can use as many GPUs as leave each
its smallest mini-batch, and ncf one GPU, as in the artifact's simulator. Epochs are the rows of the artifact's
`validation-*.csv` tables. The size of a data set is the one whose epochs give exactly the iterations of those tables at
the smallest batch size.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairway.traces.fields import Jobs, Parsed, csv_table, shown

POLLUX_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True)
class ApplicationRun:
    """One training run of an application."""

    model: str
    samples_per_epoch: int
    epochs: int
    most_per_gpu: int
    least_per_gpu: int
    data: str
    most_gpus: int | None = None

    @property
    def samples(self) -> int:
        return self.samples_per_epoch * self.epochs

    def widest(self, global_batch: int) -> int:
        """The most GPUs that a run with this global batch can use."""
        return min(max(global_batch // self.least_per_gpu, 1), self.most_gpus or global_batch)


APPLICATIONS: dict[str, ApplicationRun] = {
    "cifar10": ApplicationRun("ResNet-18", 50_000, 100, 1024, 32, "CIFAR-10"),
    "imagenet": ApplicationRun("ResNet-50", 1_281_167, 90, 100, 20, "ImageNet-1k"),
    "bert": ApplicationRun("BERT-base", 88_641, 2, 12, 4, "SQuAD 1.1 as features of 384 tokens"),
    "deepspeech2": ApplicationRun("DeepSpeech2", 7_134, 80, 80, 10, "CMU-ARCTIC"),
    "yolov3": ApplicationRun("YOLOv3", 16_551, 50, 8, 4, "PASCAL VOC 2007 + 2012 trainval"),
    "ncf": ApplicationRun("Recommendation", 4_970_845, 10, 32_768, 32, "MovieLens-1M with 4 negatives per rating", 1),
    # The artifact gives the pipeline-parallel GPT the progress tables of bert.
    "gpt_pmp": ApplicationRun("Transformer", 88_641, 2, 12, 1, "as bert"),
}


def read_pollux(text: str, path: str) -> Parsed:
    """Read a workload. `batch_size` in the file is global; a job gets the share of one GPU, and the steps of all
    samples.

    A step is the mini-batch of one GPU, as in the profiles, so a gang does `gpus` of them per global batch. If a GPU's
    share is larger than the artifact allows, it is accumulated in several passes, and there are that many times more
    steps. Jobs are elastic; a job that asks for more GPUs than its batch can feed is rigid.
    """
    jobs = Jobs(path)
    for row in csv_table(text, path, POLLUX_COLUMNS):
        name = row.required("application")
        application = APPLICATIONS.get(name)
        if application is None:
            raise row.error(f"application {shown(name)} is unknown; known: {', '.join(APPLICATIONS)}")
        gpus, global_batch = row.gpus("num_replicas"), row.whole("batch_size", at_least=1)
        passes = -(-global_batch // (gpus * application.most_per_gpu))
        widest = application.widest(global_batch)
        jobs.add(
            row.line,
            id=row.required("name"),
            submitted_s=row.number("time"),
            gpus=gpus,
            gpus_min=1 if gpus <= widest else gpus,
            gpus_max=max(widest, gpus),
            steps=application.samples * gpus * passes / global_batch,
            model=application.model,
            dataset=name,
            batch_size=-(-global_batch // (gpus * passes)),
            global_batch=global_batch,
            adaptation="none" if application.most_gpus == 1 else "tuned",
        )
    return jobs.finish()
