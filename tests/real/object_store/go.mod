// SeaweedFS, a server with S3's protocol. It is a main module's replacement that it needs, too.
module tests/object_store

go 1.26.6

require github.com/seaweedfs/seaweedfs v0.0.0-20261109003541-7506e5f91cd6

replace github.com/tyler-smith/go-bip39 => github.com/cosmos/go-bip39 v1.0.0
