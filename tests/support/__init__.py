"""Fakes and builders that tests share."""
