"""The builder that uses a Docker Engine: a rendered Dockerfile, built by BuildKit, brought into one form."""
