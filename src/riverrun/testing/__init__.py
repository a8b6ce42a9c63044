"""What users test their pipelines with."""
