"""What other people's trainings of the course's assignment answer on dev, in percent.

Public repositories of the assignment carry the files of its predictions. Those whose snapshot could
be had were scored against birth_dev.tsv on 16 November 2026, exact matches of 500; a line that only
states a percentage is no answer and was left out. How each applies rotary positions was read from
its attention.py. Their other settings were not checked. docs/studies.md links every one.
"""

from dataclasses import dataclass
from statistics import median

RIGHT_FILES = {
    "none": "vanilla.nopretrain.dev.predictions",
    "learned": "vanilla.pretrain.dev.predictions",
}
ROTARY_FILE = "rope.pretrain.dev.predictions"


@dataclass(frozen=True)
class Repository:
    name: str  # on GitHub
    commit: str
    folder: str  # with the prediction files
    none: float | None = None
    learned: float | None = None
    rotary: float | None = None
    arm: str = "rotary"  # what its rotary positions are; "" if a mistake that no arm makes

    def accuracy(self, arm: str) -> float | None:
        if arm in RIGHT_FILES:
            return float(found) if (found := getattr(self, arm)) is not None else None
        return self.rotary if arm == self.arm else None

    def link(self, file: str) -> str:
        return f"https://github.com/{self.name}/blob/{self.commit}/{self.folder}{file}"


_LONG = "Next-Gen-Language-Model-Development-From-Scratch-GPT-with-Rotary-Positional-Embeddings"
REPOSITORIES = (
    Repository(
        "genecoding/Stanford-CS224N-NLP-with-Deep-Learning-Spring2024",
        "c89879a844d16489a0443b601cc0bc86543c419e",
        "a4/",
        1.8,
        23.0,
        40.4,
    ),
    Repository(
        "zhiweilll/cs224n_winter2025",
        "57746f30b138fa66245ff743a7d794c41abbac5d",
        "a4/",
        1.8,
        23.8,
        34.8,
    ),
    Repository(
        "yuxiang-jack-zhang/pretrained-transformer-spr24",
        "414386fe9d05340695ef0c04e4112bcf26fe9a81",
        "",
        1.8,
        26.8,
        33.2,
    ),
    Repository(
        f"Prajwal111299/{_LONG}",
        "39b4dce3c85ccb2e919905c2224f87d2291268ec",
        "",
        1.2,
        21.6,
        32.0,
    ),
    Repository(
        "simonemayers/self-attention-transformers-and-pretraining",
        "2c38f63b4000e8d6694dd9b2a4bbfd83b17d7a42",
        "",
        2.6,
        22.8,
        31.6,
    ),
    Repository(
        "ljh040215/cs224n-study",
        "c8e7e2cd4c2a553e9b97fb3cab3a3a174dd4e1d0",
        "a4/",
        1.2,
        26.6,
        30.0,
    ),
    Repository(
        "Xthan0411/18786_HW3",
        "b38a1da09caabdb1b07e5857e0476361b51a3ad5",
        "",
        2.2,
        24.4,
        27.8,
    ),
    Repository(
        "sajad-usr/miniLM",
        "b1cb44e7a9b0c5439205b772d38d0845f72051aa",
        "",
        1.4,
        15.8,
        27.0,
    ),
    Repository(
        "Quanliang-C/minGPT_with_modification",
        "1dbb9bde945950adca33dd1ebb4d194b73a3de6d",
        "",
        rotary=24.4,
    ),
    Repository(
        "Yousefbahr/Stanford-CS224N-NLP-2025",
        "a892af4355ac11c8ef436df524fc5e64393111db",
        "a4/",
        2.2,
        24.2,
        21.6,
        arm="growing",
    ),
    Repository(
        "Fadmemory/CS224n-task-4",
        "cd4edddc09cc019cd2a702bc40dccd6320aa7760",
        "",
        2.6,
        21.0,
        12.2,
        arm="growing",
    ),
    Repository(
        "shubham13596/Stanford-CS224N",
        "04835e47de77f2b1e8636d039099ec0e68c820f8",
        "a4/",
        learned=24.2,
        rotary=14.8,
        arm="by-head",
    ),
    # its first frequency is above 1: the exponents begin one step early
    Repository(
        "Ashmit110/assignment-4-cs-224n",
        "851b9bf3288cbbdfddd6aa8111f919cc43fcd3f0",
        "",
        1.4,
        13.6,
        17.2,
        arm="",
    ),
    # it mixes up positions and pairs on the way back
    Repository(
        "herminyliu/cs224n-a4",
        "74321771ce025123138fe060d578909f9a9677a7",
        "",
        2.2,
        19.0,
        0.0,
        arm="",
    ),
)


def accuracies(arm: str) -> list[float]:
    found = [repository.accuracy(arm) for repository in REPOSITORIES]
    return sorted(accuracy for accuracy in found if accuracy is not None)


def summary(arm: str) -> str:
    """Median and range: 30.0 (24.4 to 40.4, 9 files); empty if nobody has tried it."""
    found = accuracies(arm)
    if len(found) < 3:
        return " and ".join(f"{accuracy:.1f}" for accuracy in found)
    return f"{median(found):.1f} ({found[0]:.1f} to {found[-1]:.1f}, {len(found)} files)"
