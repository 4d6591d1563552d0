"""How long a job would run on a platform beside others: Pitot on tables of measured runtimes."""
