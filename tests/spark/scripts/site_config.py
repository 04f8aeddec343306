"""The settings of the site's statistics."""

import configparser


def load_config(path):
    parser = configparser.ConfigParser()
    parser.read(path)
    return dict(parser["stats"])
