"""Single faults that tests once let pass, with the tests that see them now: for `mutants.py`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`wrong` in place of `code` in a module below ncpipe/; tests: files that must fail."""

    what: str
    module: str
    code: str
    wrong: str
    tests: tuple[str, ...]


NAMED = [
    Fault(
        "a line search without trials",
        "training/line_search.py",
        "            max_eval=1 + TRIALS,",
        "            max_eval=None,",
        ("tests/test_training.py::test_lbfgs_does_not_freeze",),
    ),
    Fault(
        "a search that goes on after nothing moved",
        "training/line_search.py",
        "            self.search.state.clear()\n",
        "",
        ("tests/test_training.py::test_a_search_that_moves_nothing_begins_anew",),
    ),
    Fault(
        "a search tried in vain again and again",
        "training/line_search.py",
        "            self.exhausted = rate if restarted else None\n",
        "",
        ("tests/test_training.py::test_a_search_that_has_begun_anew_in_vain_waits_for_another_rate",),
    ),
    Fault(
        "a trial step into infinity with a gradient",
        "training/line_search.py",
        "torch.where(finite, gradient, math.nan)",
        "gradient",
        ("tests/test_training.py::test_a_trial_step_into_infinity_is_taken_back",),
    ),
    Fault(
        "CE and MSE in one batch",
        "runs/fingerprint.py",
        'del spec["penalty"]\n',
        'del spec["penalty"], spec["loss"]\n',
        ("tests/test_fingerprints.py::test_what_trains_apart",),
    ),
    Fault(
        "two schedules in one batch",
        "runs/fingerprint.py",
        'del spec["penalty"]\n',
        'del spec["penalty"], spec["schedule"]\n',
        ("tests/test_fingerprints.py::test_what_trains_apart",),
    ),
    Fault(
        "two batch sizes in one batch",
        "runs/fingerprint.py",
        'del spec["penalty"]\n',
        'del spec["penalty"], spec["batch_size"]\n',
        ("tests/test_fingerprints.py::test_what_trains_apart",),
    ),
    Fault(
        "histories of two rhythms in one batch",
        "runs/fingerprint.py",
        'del spec["penalty"]\n',
        'del spec["penalty"], spec["log_every"]\n',
        ("tests/test_fingerprints.py::test_what_trains_apart",),
    ),
    Fault(
        "two data sets in one batch",
        "runs/fingerprint.py",
        "[spec, self.run.depth, self.data, dataclasses",
        "[spec, self.run.depth, dataclasses",
        ("tests/test_fingerprints.py::test_what_trains_apart",),
    ),
    Fault(
        "precision missing from a run's fingerprint",
        "runs/fingerprint.py",
        '        "precision": compute.precision,\n',
        "",
        ("tests/test_fingerprints.py::test_a_folder_of_another_run_is_no_result",),
    ),
    Fault(
        "the device in a run's fingerprint",
        "runs/fingerprint.py",
        "[self.inputs(), self.code]",
        "[self.inputs(), self.compute.device, self.code]",
        (
            "tests/test_fingerprints.py::test_the_device_asked_for_tells_checkpoints_apart_and_not_finished_runs",
        ),
    ),
    Fault(
        "every run finished",
        "runs/run_folder.py",
        '"finished": trained.diverged_at is None',
        '"finished": True',
        ("tests/test_fingerprints.py::test_how_a_run_ended_is_recorded",),
    ),
    Fault(
        "a diverged run not taken back",
        "training/session.py",
        "torch.where(diverged.unsqueeze(1), self.finite, self.stack.values)",
        "self.stack.values",
        ("tests/test_training.py::test_a_diverged_run_has_its_last_finite_weights",),
    ),
    Fault(
        "a diverged run taken back to its start",
        "training/session.py",
        "        self.alive &= ~diverged\n        self.finite.copy_(self.stack.values)\n",
        "        self.alive &= ~diverged\n",
        ("tests/test_fake_cuda.py::test_a_diverged_run_gets_back_the_weights_of_its_last_finite_loss",),
    ),
    Fault(
        "the last finite weights forgotten by a checkpoint",
        "training/session.py",
        'buffers = {"values": self.stack.values, "finite": self.finite, **self',
        'buffers = {"values": self.stack.values, **self',
        ("tests/test_checkpoints.py::test_stopped_at_any_epoch_before_and_after_it_diverges",),
    ),
    Fault(
        "checkpoints of different epochs mixed",
        "training/checkpoints.py",
        ' and len({state["epoch"] for state in found}) == 1',
        "",
        ("tests/test_checkpoints.py::test_states_after_different_numbers_of_epochs_are_not_mixed",),
    ),
    Fault(
        "tensors of a stack anywhere in memory",
        "training/stack.py",
        "ALIGNMENT = 64",
        "ALIGNMENT = 8",
        ("tests/test_training.py::test_every_tensor_of_every_run_begins_on_a_boundary",),
    ),
    Fault(
        "lambda_L for lambda in the inner penalty",
        "models/penalties.py",
        "penalty.inner_strength(depth) if own",
        "penalty.last_strength(depth) if own",
        ("tests/test_features.py::test_penalties_are_the_objectives_own",),
    ),
    Fault(
        "a rank's cutoff in proportion to centred means",
        "metrics/statistics.py",
        "max(self._singular[0].item(), ",
        "max(singular_values(self.means - self.means.mean(0))[0].item(), ",
        ("tests/test_metric_table.py::test_what_rounding_leaves_of_far_means_is_no_direction",),
    ),
    Fault(
        "one number of runs for all depths in the degrees of freedom",
        "tables/intervals.py",
        "(parts**2 / (runs - 1)).sum()",
        "(parts**2 / (runs.mean() - 1)).sum()",
        ("tests/test_slopes.py::test_intervals_are_welchs_for_groups_of_any_sizes",),
    ),
    Fault(
        "test images drawn from the training images' stream",
        "datasets/images.py",
        'test.draw(spec.test_per_class, spec.seed, "test")',
        'test.draw(spec.test_per_class, spec.seed, "train")',
        ("tests/test_datasets.py::test_every_draw_of_a_data_set_has_its_own_stream",),
    ),
    Fault(
        "a bound's slope taken from L = 1 on, where log L is 0",
        "figures/depth_sweep.py",
        "x, bound = places[np.isfinite(bound)], bound[np.isfinite(bound)]",
        "x = places",
        ("tests/test_figures.py::test_a_figure_has_the_words_lines_and_axes_that_are_stored",),
    ),
    Fault(
        "2^32 as a seed",
        "config/bounds.py",
        "Bound(0, 2**32 - 1)",
        "Bound(0, 2**32)",
        ("tests/test_params.py",),
    ),
    Fault(
        "a run that another process trains taken too",
        "runs/run_claims.py",
        "self._link(right.name):\n            return False\n",
        "self._link(right.name):\n            return True\n",
        ("tests/test_run_claims.py::test_a_run_has_one_claim",),
    ),
    Fault(
        "code not compared before a run is stored",
        "runs/results.py",
        "    check_code(fingerprints[0])\n",
        "",
        ("tests/test_edited_code.py::test_code_is_edited_at_any_moment",),
    ),
    Fault(
        "a stored run taken unread",
        "runs/fast_path.py",
        "            verify_stored(store_folder() / key, key)\n",
        "",
        ("tests/test_store.py::test_what_is_not_as_it_was_is_left_to_the_long_way",),
    ),
    Fault(
        "train error in the place of test error",
        "features/run_metrics.py",
        "error(split) for name, split in ((TRAIN, features.train), (TEST, features.test))",
        "error(split) for name, split in ((TRAIN, features.train), (TEST, features.train))",
        ("tests/test_gap.py::test_a_runs_row_holds_it_against_its_own_last_strength",),
    ),
    Fault(
        "rows and columns of the cosines exchanged",
        "features/run_metrics.py",
        '("duality", rows @ means.T)',
        '("duality", means @ rows.T)',
        ("tests/test_gap.py::test_a_runs_row_holds_it_against_its_own_last_strength",),
    ),
    Fault(
        "a gradient without the penalty's",
        "features/gradient.py",
        "        sum_.add_(parameter.detach(), alpha=",
        "        0 * sum_.add_(0 * parameter.detach(), alpha=",
        ("tests/test_training.py::test_the_gradients_norm_is_the_plain_one",),
    ),
    Fault(
        "a tolerance for the second pass 100 times looser",
        "metrics/sample_statistics.py",
        "(again.within - within).abs() > allowed",
        "(again.within - within).abs() > 100 * allowed",
        ("tests/test_wrappers.py::test_fresh_noise_is_seen_however_collapsed_a_network_is",),
    ),
    Fault(
        "a tolerance for the second pass in proportion to the features",
        "metrics/sample_statistics.py",
        "2 * (within.clamp(min=0) * errors).sqrt() + errors",
        "1e-5 * errors / rounding**2",
        ("tests/test_wrappers.py::test_fresh_noise_is_seen_however_collapsed_a_network_is",),
    ),
    Fault(
        "the weight of before the forward pass",
        "metrics/classifier.py",
        "        # Registered last: the hooks",
        "        self.weight, self.bias = self.module.weight, self.module.bias\n"
        "        self.precision = torch.float64\n"
        "        # Registered last: the hooks",
        ("tests/test_wrappers.py::test_the_weight_is_what_the_head_multiplies_with",),
    ),
    Fault(
        "modes restored by their attribute",
        "metrics/eval_mode.py",
        "                module.train(training)\n",
        "                module.training = training\n",
        ("tests/test_wrappers.py::test_a_measurement_leaves_no_trace_in_modules_that_act_on_their_mode",),
    ),
    Fault(
        "weights that a mode merges not restored",
        "metrics/eval_mode.py",
        "            found += module.parameters()\n",
        "            pass\n",
        ("tests/test_wrappers.py::test_a_measurement_leaves_no_trace_in_modules_that_act_on_their_mode",),
    ),
    Fault(
        "maps averaged as if channels came first",
        "metrics/layers.py",
        "    return known.pop() if len(known) == 1 else None",
        "    return channels_first",
        ("tests/test_wrappers.py::test_maps_are_averaged_over_positions",),
    ),
    Fault(
        "digits called MNIST in figures",
        "figures/labels.py",
        '"digits": "digits"',
        '"digits": "MNIST"',
        ("tests/test_figures.py::test_each_data_set_has_its_own_name",),
    ),
    Fault(
        "a line through means of single runs",
        "figures/depth_sweep.py",
        'summary["n_used"] >= 2',
        'summary["n_used"] >= 1',
        ("tests/test_figures.py::test_a_figure_has_the_words_lines_and_axes_that_are_stored",),
    ),
    Fault(
        "a constant feature divided by 0",
        "datasets/arrays.py",
        "        std = np.where(constant.reshape(std.shape), 1.0, std)\n",
        "",
        ("tests/test_arrays.py::test_what_is_constant_is_divided_by_1_as_scikit_learn_does",),
    ),
    Fault(
        "a recording without warm-up",
        "training/cuda_graph.py",
        "WARM_UP = 3",
        "WARM_UP = 0",
        ("tests/test_fake_cuda.py::test_what_is_captured_trains_the_same[optimizer sgd]",),
    ),
    Fault(
        "a session's stream that does not wait",
        "training/cuda_graph.py",
        "        stream.wait_stream(here)\n",
        "",
        ("tests/test_fake_cuda.py::test_a_block_waits_for_what_came_before_it_and_is_waited_for",),
    ),
    Fault(
        "a session's stream that is not waited for",
        "training/cuda_graph.py",
        "        here.wait_stream(stream)\n",
        "",
        ("tests/test_fake_cuda.py::test_a_block_waits_for_what_came_before_it_and_is_waited_for",),
    ),
    Fault(
        "a stream for two sessions at once",
        "training/cuda_graph.py",
        "free.pop() if free else torch.cuda.Stream()",
        "torch.cuda.Stream()",
        ("tests/test_fake_cuda.py::test_forty_sessions_share_no_stream_with_one_that_lives",),
    ),
    Fault(
        "the memory of a failed recording kept",
        "training/cuda_graph.py",
        "            _abandon(graph, self.memory)\n",
        "",
        ("tests/test_fake_cuda.py::test_out_of_memory_leaves_the_stream_that_was_there",),
    ),
]
