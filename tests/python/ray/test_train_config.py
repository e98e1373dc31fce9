"""The configuration of HorovodTrainer and what older guides write, without a cluster."""
import pickle
import warnings

import pytest
import ray.air
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

from horovod.ray import _train_convert as convert
from horovod.ray.train import HorovodConfig, HorovodTrainer

SECRET = "b7" * 32


def loop():
    pass


def trainer(**kwargs):
    return HorovodTrainer(loop, **kwargs)


def test_defaults_are_those_of_ray():
    from ray.train.horovod.config import HorovodConfig as Theirs
    from dataclasses import fields
    theirs = {f.name: f.default for f in fields(Theirs)}
    ours = {f.name: f.default for f in fields(HorovodConfig)}
    assert theirs == {name: ours[name] for name in theirs}


def test_a_missing_key_is_made_up():
    a, b = HorovodConfig(), HorovodConfig()
    assert len(a.key) == 32 and a.key != b.key


def test_the_key_shows_nowhere():
    config = HorovodConfig(key=SECRET, ssh_str=None)
    shown = [repr(config), str(config), config._repr_html_(), repr(config.to_dict())]
    assert not any(SECRET in text for text in shown)
    assert "key" not in config.to_dict()


def test_to_dict_can_be_exported():
    from ray.train.v2._internal.state.export import _dict_to_struct
    config = HorovodConfig(nics={"lo", "eth0"}, variables={"HOROVOD_CYCLE_TIME": "2"})
    assert config.to_dict()["nics"] == ["eth0", "lo"]
    _dict_to_struct(config.to_dict())


def test_pickles_with_its_key():
    config = HorovodConfig(key=SECRET, nics={"lo"})
    again = pickle.loads(pickle.dumps(config))
    assert again == config and again.key == SECRET


def test_each_read_of_start_timeout_is_a_new_limit():
    config = HorovodConfig(timeout_s=5)
    assert config.start_timeout is not config.start_timeout
    assert 4 < config.start_timeout.remaining() <= 5


def test_ssh_str_is_written_for_the_owner_only(tmp_path):
    path = tmp_path / "identity"
    HorovodConfig(ssh_identity_file=str(path), ssh_str="text")
    HorovodConfig(ssh_identity_file=str(path), ssh_str="other")
    assert path.read_text() == "text" and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="ssh_identity_file"):
        HorovodConfig(ssh_str="text")


def test_config_of_rays_class_is_copied():
    from ray.train.horovod.config import HorovodConfig as Theirs
    theirs = Theirs(timeout_s=7, nics={"lo"}, key=SECRET)
    ours = trainer(horovod_config=theirs).backend_config
    assert type(ours) is HorovodConfig
    assert (ours.timeout_s, ours.nics, ours.key) == (7, {"lo"}, SECRET)


def test_other_configs_are_refused():
    from ray.train.torch import TorchConfig
    with pytest.raises(ValueError, match="HorovodConfig, not TorchConfig"):
        trainer(horovod_config=TorchConfig())


def test_the_spelling_of_the_guide():
    config = HorovodConfig(timeout_s=11)
    with pytest.warns(DeprecationWarning, match="tensorflow_backend") as caught:
        assert trainer(tensorflow_backend=config).backend_config.timeout_s == 11
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="both"):
        trainer(tensorflow_backend=config, horovod_config=config)


def test_scaling_config_of_air():
    old = ray.air.ScalingConfig(num_workers=3, resources_per_worker={"CPU": 2},
                                placement_strategy="SPREAD")
    if type(old) is ScalingConfig:      # ray.air gives the new one already
        from ray.air.config import ScalingConfig as Old
        old = Old(num_workers=3, resources_per_worker={"CPU": 2},
                  placement_strategy="SPREAD")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        new = trainer(scaling_config=old).scaling_config
    assert type(new) is ScalingConfig
    assert (new.num_workers, new.resources_per_worker, new.placement_strategy) == \
        (3, {"CPU": 2}, "SPREAD")


def test_trainer_resources_are_dropped():
    from ray.air.config import ScalingConfig as Old
    with pytest.warns(UserWarning, match="trainer_resources") as caught:
        new = trainer(scaling_config=Old(num_workers=1, trainer_resources={"CPU": 2}))
    assert new.scaling_config.trainer_resources is None
    assert caught[0].filename == __file__


def test_run_config_of_air(tmp_path):
    from ray.air.config import CheckpointConfig as OldCheckpoint
    from ray.air.config import FailureConfig as OldFailure, RunConfig as Old
    old = Old(name="n", storage_path=str(tmp_path), stop={"loss": 1},
              failure_config=OldFailure(max_failures=2),
              checkpoint_config=OldCheckpoint(num_to_keep=4))
    with pytest.warns(UserWarning, match="stop"):
        new = trainer(run_config=old).run_config
    assert type(new) is RunConfig and (new.name, new.storage_path) == ("n", str(tmp_path))
    assert type(new.failure_config) is FailureConfig
    assert new.failure_config.max_failures == 2
    assert type(new.checkpoint_config) is CheckpointConfig
    assert new.checkpoint_config.num_to_keep == 4


def test_new_configs_pass_untouched():
    scaling, run = ScalingConfig(num_workers=(1, 2)), RunConfig(name="x")
    t = trainer(scaling_config=scaling, run_config=run)
    assert t.scaling_config is scaling and t.run_config is run


def test_unknown_keywords_reach_ray():
    with pytest.raises(TypeError, match="nonsense"):
        trainer(nonsense=1)
    assert trainer(validation_config=None).validation_config is None


def test_what_ray_has_dropped_raises_as_ray_does():
    with pytest.raises(DeprecationWarning):
        trainer(metadata={"a": 1})
    with pytest.raises(DeprecationWarning):
        trainer(resume_from_checkpoint="x")


def test_variables_of_the_driver(monkeypatch):
    for name in ("RANK", "KEY", "KEY_FILE", "KEY_FD", "GLOO_RENDEZVOUS_PORT", "JOB_ID"):
        monkeypatch.setenv("HOROVOD_" + name, "7")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2.5")
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo")
    given = HorovodConfig(variables={"HOROVOD_FUSION_THRESHOLD": "1mb", "HOROVOD_KEY": "7"})
    config = trainer(horovod_config=given).backend_config
    mine = {n: v for n, v in config.variables.items() if n != "HOROVOD_RECORDER_DIR"}
    assert mine == {"HOROVOD_CYCLE_TIME": "2.5", "HOROVOD_GLOO_IFACE": "lo",
                    "HOROVOD_FUSION_THRESHOLD": "1mb"}
    assert config.key == given.key and "HOROVOD_KEY" in given.variables, "a copy was made"


def test_no_variable_of_identity_is_carried():
    import pathlib
    import re
    table = pathlib.Path(__file__).parents[3] / "src/base/config.def"
    rows = re.findall(r'^CONFIG\(\w+, \w+, "(\w+)",.*?, (?:IDENTITY[^,]*),', table.read_text(),
                      re.MULTILINE)
    assert {"RANK", "KEY", "JOB_ID"} <= set(rows)
    assert convert.variables({"HOROVOD_" + name: "1" for name in rows}) == {}
