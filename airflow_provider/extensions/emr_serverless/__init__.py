"""Launcher: drivers as job runs of Amazon EMR Serverless."""
