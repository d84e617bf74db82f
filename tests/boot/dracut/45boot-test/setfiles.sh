#!/bin/sh
# There is nothing to label.
