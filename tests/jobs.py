"""A job as submitit gives one back, for tests without a cluster."""

import types


class Job:
    """A job of the stand-in, run when it is submitted."""

    paths = types.SimpleNamespace(folder="logs")

    def __init__(self, job_id, work):
        self.job_id, self.state, self._error = job_id, "COMPLETED", None
        try:
            self._results = [work()]
        except Exception as error:
            self._error = error

    def results(self):
        if self._error:
            raise self._error
        return self._results
