#!/bin/sh
mkdir -p /run/boot-test
boot-test-report >/run/boot-test/report
