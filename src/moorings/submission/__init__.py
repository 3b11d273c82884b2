"""What ``moor run`` and ``moorings.submit`` share: from a job as a person gives it to the run that the controller made.

``job_building`` makes the complete job, ``job_environment`` says which variables travel, ``early_checks`` looks at
program and folders, ``container_images`` fetches an image, ``handing_in`` sends it, ``slurm_submission`` submits it to
Slurm as its person. Start reading at ``job_building``. Not here: what a job is (``workloads``), and what a run prints
(``cli``) or returns (``sdk``).
"""
