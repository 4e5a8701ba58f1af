# docker build -t kbr .
# docker run --rm -v "$PWD:/work" kbr kbr-train data=oscillatory model=iw
FROM python:3.11-slim
COPY pyproject.toml constraints.txt README.md LICENSE /source/
COPY kbr /source/kbr
COPY configs /source/configs
RUN pip install --no-cache-dir -c /source/constraints.txt "/source[parquet,video,tune]"
WORKDIR /work
CMD ["kbr-train", "--help"]
