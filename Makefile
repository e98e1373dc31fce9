all: setup
