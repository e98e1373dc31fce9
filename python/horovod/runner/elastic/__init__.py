"""Elastic jobs: discovery of hosts, and settings."""
