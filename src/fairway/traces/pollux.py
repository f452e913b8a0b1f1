"""The workloads of the Pollux and Sia artifacts: `name,time,application,num_replicas,batch_size`.

The file names an application and no amount of work: each run goes through its data set a fixed number of times.
`APPLICATIONS` holds those numbers, and the most samples that a GPU takes at once (for ResNet-50 half of the artifact's
figure, which would not fit the 16 GiB of its GPUs without mixed precision). Epochs are the rows of the artifact's
`validation-*.csv` tables, and the size of a data set is the one whose epochs give exactly the iterations of those
tables at the smallest batch size.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairway.traces.fields import Jobs, Parsed, csv_table, shown

POLLUX_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True)
class Application:
    """What one training run of an application consists of."""

    model: str
    samples_per_epoch: int
    epochs: int
    most_per_gpu: int
    data: str

    @property
    def samples(self) -> int:
        return self.samples_per_epoch * self.epochs


APPLICATIONS: dict[str, Application] = {
    "cifar10": Application("ResNet-18", 50_000, 100, 1024, "CIFAR-10"),
    "imagenet": Application("ResNet-50", 1_281_167, 90, 100, "ImageNet-1k"),
    "bert": Application("BERT-base", 88_641, 2, 12, "SQuAD 1.1 as features of 384 tokens"),
    "deepspeech2": Application("DeepSpeech2", 7_134, 80, 80, "CMU-ARCTIC"),
    "yolov3": Application("YOLOv3", 16_551, 50, 8, "PASCAL VOC 2007 + 2012 trainval"),
    "ncf": Application("Recommendation", 4_970_845, 10, 32_768, "MovieLens-1M with 4 negatives per rating"),
    # The artifact gives the pipeline-parallel GPT the progress tables of bert.
    "gpt_pmp": Application("Transformer", 88_641, 2, 12, "as bert"),
}


def read_pollux(text: str, path: str) -> Parsed:
    """`batch_size` in the file is global: a job gets the share of one GPU, and the steps that all samples take.

    A step is the mini-batch of one GPU, as in the profiles, so a gang does `gpus` of them per global batch, and a
    multiple of that where a GPU's share is larger than the artifact lets it be and is accumulated in several passes.
    """
    jobs = Jobs(path)
    for row in csv_table(text, path, POLLUX_COLUMNS):
        name = row.required("application")
        application = APPLICATIONS.get(name)
        if application is None:
            raise row.error(f"application {shown(name)} is unknown; known: {', '.join(APPLICATIONS)}")
        gpus, global_batch = row.gpus("num_replicas"), row.whole("batch_size", at_least=1)
        passes = -(-global_batch // (gpus * application.most_per_gpu))
        jobs.add(
            row.line,
            id=row.required("name"),
            submitted_s=row.number("time"),
            gpus=gpus,
            steps=application.samples * gpus * passes / global_batch,
            model=application.model,
            dataset=name,
            batch_size=-(-global_batch // (gpus * passes)),
        )
    return jobs.finish()
